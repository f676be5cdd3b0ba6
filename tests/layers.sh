#!/bin/sh
# Who may include whom (the arrows of the map in CONTRIBUTING.md), where third-party headers may enter, and whether
# what CONTRIBUTING.md names exists, and what `make help` leaves out.
# Prints each violation and exits 1 when there is one.
cd "$(dirname "$0")/.." || exit 1
bad=0

# folder: folders whose headers it may include
check() {
    folder=$1; shift
    allowed=" $folder $* "
    [ -d "$folder" ] || return
    out=$(grep -rnE '^[[:space:]]*#[[:space:]]*include "' "$folder" --include='*.[ch]' --include='*.def' --include='*.cu' |
        grep -v '^collectives/python/' | # compiled where PyTorch is, against what is installed there
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

# inside a folder: a room may include the rooms named behind it, and itself.
room() {
    room=$1; shift
    allowed=$(printf '%s|' "$room" "$@")
    out=$(grep -rnE '^[[:space:]]*#[[:space:]]*include "(rendezvous|agent|launcher|collectives)/' "$room" --include='*.[ch]' |
        grep -vE "include \"(${allowed%|})/[^/\"]*\"")
    [ -z "$out" ] || { printf 'not allowed from the room %s (may use: %s)\n%s\n' "$room" "$*" "$out"; bad=1; }
}
room rendezvous/rules
room rendezvous/store
room rendezvous/wire rendezvous/rules
room rendezvous/discovery rendezvous/rules rendezvous/wire
room agent/rules rendezvous/rules
room agent/base agent/rules rendezvous rendezvous/rules
room agent/process agent/base
room agent/output agent/base agent/process rendezvous/rules
room agent/report agent/base rendezvous/rules
room agent/device agent/base agent/process rendezvous/rules
room agent/mpi agent/base rendezvous/rules
room agent/inspect rendezvous/rules
room agent/stacks agent/base agent/inspect agent/process agent/report rendezvous/rules
room agent/doctor agent/base agent/device agent/process agent/report rendezvous rendezvous/rules
room launcher/options agent agent/base agent/device agent/output agent/process rendezvous rendezvous/rules rendezvous/wire
room launcher/control agent agent/base agent/report rendezvous/rules
room launcher/hosts launcher/options agent/base agent/inspect agent/output agent/process rendezvous/rules rendezvous/wire
room launcher/api launcher/hosts
room collectives/base collectives
room collectives/reduce collectives collectives/base
room collectives/bootstrap collectives collectives/base rendezvous/store
room collectives/wire collectives/base collectives/bootstrap
room collectives/comm collectives collectives/base collectives/bootstrap collectives/reduce collectives/wire
room collectives/net collectives/base collectives/comm collectives/reduce collectives/wire
room collectives/shm collectives/base collectives/comm collectives/reduce collectives/wire
room collectives/hier collectives/comm collectives/net collectives/shm
room collectives/p2p collectives/base collectives/comm collectives/shm collectives/wire
room collectives/perform collectives collectives/base collectives/comm collectives/hier collectives/net collectives/shm
room collectives/nccl collectives collectives/base collectives/comm collectives/perform
room collectives/ops collectives collectives/base collectives/bootstrap collectives/comm collectives/hier collectives/nccl collectives/net collectives/p2p collectives/perform collectives/reduce collectives/shm
room collectives/profiler collectives/bootstrap

# no include cycle, neither between units (x.c with x.h) nor between rooms: tsort names the units or rooms of one.
includes=$(grep -rE '^[[:space:]]*#[[:space:]]*include "(core|rendezvous|agent|launcher|collectives)/' \
        core rendezvous agent launcher collectives --include='*.[ch]' |
    sed -nE 's/^([^:]*)\.[ch]:.*include "([^"]*)\.[a-z]+".*/\1 \2/p')
loop=$(printf '%s\n' "$includes" | awk '$1 != $2' | tsort 2>&1 >/dev/null)
[ -z "$loop" ] || { printf 'include cycle:\n%s\n' "$loop"; bad=1; }
loop=$(printf '%s\n' "$includes" | sed -E 's,/[^/ ]*( |$),\1,g' |
    awk '$1 != $2' | sort -u | tsort 2>&1 >/dev/null)
[ -z "$loop" ] || { printf 'rooms in a circle:\n%s\n' "$loop"; bad=1; }

# a function is read at one glance: 60 lines from its name to its end.
# shellcheck disable=SC2016
out=$(find core rendezvous agent launcher collectives -name '*.[ch]' -o -name '*.cu' | sort | xargs awk '
    /^[A-Za-z_]/ { from = FNR; name = $0 }
    /^\{$/ { begun = from; of = name; sub(/\(.*/, "", of); sub(/.*[ *]/, "", of) }
    /^\}$/ {
        if (begun && FNR - begun >= 60)
            printf "%s:%d: %s() has %d lines, 60 at most\n", FILENAME, begun, of, FNR - begun + 1
        begun = 0
    }')
[ -z "$out" ] || { printf '%s\n' "$out"; bad=1; }

# each unit declares its own objects.
python3 tests/declared.py || bad=1

# third-party headers: one door each.
door() {
    out=$(grep -rnE "include <($1)" core rendezvous agent launcher collectives --include='*.[ch]' | grep -vE "^($2)")
    [ -z "$out" ] || { printf '<%s> may be included only by %s\n%s\n' "$1" "$2" "$out"; bad=1; }
}
door 'ini\.h' 'launcher/options/config_file\.c'
door 'openssl/' 'core/tls\.c'
door 'hwloc' 'agent/device/(placement|topology)'
door 'jansson' '(agent/|launcher/|rendezvous/discovery/etcd_api\.c)'
door '(nccl|cuda)' 'collectives/nccl/'
# waiting for descriptors without libuv: CONTRIBUTING.md says why, under "Epoll without libuv".
door 'sys/epoll' '(collectives/base/task|rendezvous/(store/store_service|wire/beat)|agent/(output/stdio(_console|_pump)?|process/reaper)|launcher/hosts/(head_output|input))\.c'
door 'uv\.h' '(core/uvx|rendezvous/|agent/|launcher/)'
out=$(grep -rnlE 'include <uv\.h>|core/uvx' collectives rendezvous/store/store_client.c rendezvous/store/store_proto.c rendezvous/store/store_table.c rendezvous/store/store_out.c rendezvous/store/store_session.c rendezvous/store/store_service.c rendezvous/store/store_thread.c rendezvous/rules agent/rules 2>/dev/null)
[ -z "$out" ] || { printf 'must stay free of libuv:\n%s\n' "$out"; bad=1; }

# the map itself: the files and functions that CONTRIBUTING.md names exist (x.c and x.h there stand for any unit).
out=$(grep -oE '[A-Za-z0-9_./-]+\.(c|h|py|md|def|tsv|map|sh|svg)\b' CONTRIBUTING.md | grep -vx 'x\.[ch]' | sort -u |
    while IFS= read -r name; do
        find ./[a-t]*/ ./*.md -path "./build*" -prune -o -path "*/$name" -print |
            grep -q . || printf '%s\n' "$name"
    done
    grep -oE '[a-z0-9_]+\(\)' CONTRIBUTING.md | sort -u | while IFS= read -r name; do
        grep -rqE "^[a-z].*\<${name%??}\(" agent collectives core launcher rendezvous --include='*.c' || printf '%s\n' "$name"
    done)
[ -z "$out" ] || { printf 'CONTRIBUTING.md names what does not exist:\n%s\n' "$out"; bad=1; }

# make: what can be typed has a line of help, and a variable that the user may set has one default.
out=$(sed -nE 's/^([a-z][a-z-]*( [a-z][a-z-]*)*):([^=].*)?$/\1/p' Makefile mk/*.mk | tr ' ' '\n' | sort -u |
    while IFS= read -r name; do
        grep -q "^## $name: " Makefile mk/*.mk || printf 'make %s has no line of help\n' "$name"
    done
    sed -nE 's/^([A-Z_]+) *\?=.*/\1/p' Makefile mk/*.mk | sort | uniq -d | sed 's/$/ has two defaults/')
[ -z "$out" ] || { printf '%s\n' "$out"; bad=1; }

[ $bad = 0 ] && echo "layers: ok"
exit $bad
