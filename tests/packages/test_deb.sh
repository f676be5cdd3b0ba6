#!/bin/bash
# Installs the Debian packages into a clean Debian root and uses what they bring.
#   test_deb.sh FOLDER          with the three packages of conf/make-deb.sh
# Needs root, mmdebstrap, lintian and a package mirror. SKIPPED, with the reason, where there is none.
set -eu
here=$(dirname "$(realpath "$0")")
folder=$(realpath "$1")
work=$(mktemp -d)
root=$work/root
trap 'umount -l "$root/proc" "$root/dev" 2>/dev/null; rm -rf "$work"' EXIT
passed=0

ok() {
    echo "deb: $1: ok"
    passed=$((passed + 1))
}
fail() {
    echo "deb: $1: FAILED"
    cat "$work/log"
    echo "$passed passed, 1 failed"
    exit 1
}
in_root() { chroot "$root" env -i PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 "$@" >"$work/log" 2>&1; }

[ "$(id -u)" = 0 ] || {
    echo "SKIPPED: the Debian packages: a clean root needs the user root"
    exit 0
}
lintian --allow-root --fail-on error,warning --profile debian "$folder"/*.deb >"$work/log" 2>&1 || fail "lintian"
ok "lintian has nothing to object to"
timeout 600 mmdebstrap --quiet --variant=apt bookworm "$root" >"$work/log" 2>&1 || {
    echo "SKIPPED: the Debian packages in a clean root: $(tail -n 1 "$work/log")"
    exit 0
}
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
cp "$folder"/*.deb "$root/root/"
chroot "$root" sh -c 'apt-get install -y --no-install-recommends /root/*.deb' >"$work/log" 2>&1 || fail "apt-get install"
ok "apt-get installs them into a clean root"
# shellcheck disable=SC2016  # the worker's shell expands the variables
in_root dlaunch --nproc_per_node 3 --no_python sh -c 'echo rank $RANK of $WORLD_SIZE' || fail "dlaunch"
for r in 0 1 2; do grep -q "^rank $r of 3\$" "$work/log" || fail "dlaunch's workers"; done
ok "dlaunch starts workers"
in_root dlaunch --timeout 1 --no_python sleep 100 && fail "--timeout"
grep -q "sleeps in clock_nanosleep" "$work/log" || fail "dlaunch-inspect"
ok "dlaunch finds dlaunch-inspect"
in_root dlaunch --nproc_per_node 2 dlcoll_perf all_reduce --max 4K || fail "dlcoll_perf"
ok "the library works under dlaunch"
cc -o "$root/root/allreduce" "$here/../../examples/allreduce.c" -I"$root/usr/include" \
    -L"$root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" -ldlcoll >"$work/log" 2>&1 || fail "the headers"
in_root dlaunch --nproc_per_node 4 /root/allreduce || fail "a program built against libdlcoll-dev"
grep -q "4 ranks" "$work/log" || fail "a program built against libdlcoll-dev"
ok "a program is built against libdlcoll-dev and runs"
chroot "$root" sh -c 'apt-get purge -y dlaunch libdlcoll0 libdlcoll-dev' >"$work/log" 2>&1 || fail "apt-get purge"
find "$root/usr" "$root/lib/systemd" -name '*dlaunch*' -o -name '*dlcoll*' >"$work/log"
[ ! -s "$work/log" ] || fail "purge leaves files"
ok "purge leaves nothing"
echo "$passed passed, 0 failed"
