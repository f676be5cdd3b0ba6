#!/bin/sh
# Who may include whom (the arrows of README.md's map), and where third-party headers may enter.
# Prints each violation and exits 1 when there is one.
cd "$(dirname "$0")/.." || exit 1
bad=0

# folder: folders whose headers it may include
check() {
    folder=$1; shift
    allowed=" $folder $* "
    [ -d "$folder" ] || return
    out=$(grep -rnE '^[[:space:]]*#[[:space:]]*include "' "$folder" --include='*.[ch]' --include='*.def' --include='*.cu' |
        while IFS= read -r line; do
            target=$(printf '%s' "$line" | sed -E 's/.*include "([^"/]*)\/.*/\1/')
            case "$allowed" in *" $target "*) ;; *) printf '%s\n' "$line" ;; esac
        done)
    [ -z "$out" ] || { printf 'not allowed from %s (may use:%s)\n%s\n' "$folder" "$allowed" "$out"; bad=1; }
}
check core
check rendezvous core
check agent core rendezvous
check launcher core rendezvous agent
check collectives core rendezvous
check examples

# collectives know of rendezvous only the store (client, protocol, table).
out=$(grep -rnE 'include "rendezvous/' collectives | grep -vE 'rendezvous/store/store_(client|proto|table|thread)\.h')
[ -z "$out" ] || { printf 'collectives may include only the store of rendezvous\n%s\n' "$out"; bad=1; }

# the tools are programs like any other.
out=$(grep -rnE 'include "' collectives/tools | grep -vE 'include "collectives/(tools/|dlcoll\.h)')
[ -z "$out" ] || { printf 'collectives/tools may include only dlcoll.h\n%s\n' "$out"; bad=1; }

# third-party headers: one door each.
door() {
    out=$(grep -rnE "include <($1)" core rendezvous agent launcher collectives --include='*.[ch]' | grep -vE "^($2)")
    [ -z "$out" ] || { printf '<%s> may be included only by %s\n%s\n' "$1" "$2" "$out"; bad=1; }
}
door 'ini\.h' 'launcher/config_file\.c'
door 'openssl/' 'core/tls\.c'
door 'hwloc' 'agent/device/(placement|topology)'
door '(nccl|cuda)' 'collectives/nccl/'
door 'uv\.h' '(core/uvx|rendezvous/|agent/|launcher/)'
out=$(grep -rnlE 'include <uv\.h>|core/uvx' collectives rendezvous/store/store_client.c rendezvous/store/store_proto.c rendezvous/store/store_table.c rendezvous/store/store_out.c rendezvous/store/store_session.c rendezvous/store/store_service.c rendezvous/store/store_thread.c rendezvous/rules 2>/dev/null)
[ -z "$out" ] || { printf 'must stay free of libuv:\n%s\n' "$out"; bad=1; }

[ $bad = 0 ] && echo "layers: ok"
exit $bad
