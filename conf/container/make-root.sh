#!/bin/sh
# Collects the files of the container image (conf/container/Containerfile) from a build and from this machine: programs,
# libdlcoll, examples, and the shared libraries that they need or load.
#   conf/container/make-root.sh BUILD FOLDER
set -eu
build=$1 root=$2
rm -rf "$root"
mkdir -p "$root/usr/local/bin" "$root/usr/local/lib/dlaunch" "$root/usr/local/libexec/dlaunch" "$root/etc" "$root/tmp"
chmod 1777 "$root/tmp"
for program in dlaunch dlaunchctl dlcoll_perf dlcoll_info dlcoll_tune; do
    strip -o "$root/usr/local/bin/$program" "$build/$program"
done
strip -o "$root/usr/local/libexec/dlaunch/dlaunch-inspect" "$build/dlaunch-inspect"
strip --strip-unneeded -o "$root/usr/local/lib/libdlcoll.so.0" "$build/libdlcoll.so.0"
ln -s libdlcoll.so.0 "$root/usr/local/lib/libdlcoll.so"
for example in hello allreduce train; do
    # The examples look for libdlcoll in the folder above.
    strip -o "$root/usr/local/lib/dlaunch/$example" "$build/examples/$example"
done
cp "$(dirname "$0")/../../examples/data/digits.csv" "$root/usr/local/lib/dlaunch/"

# OpenSSL authenticates launchers of several hosts, hwloc places workers; both are loaded when they are needed.
loaded=$(ldconfig -p | sed -n 's/.*=> \(.*lib\(ssl\.so\.3\|crypto\.so\.3\|hwloc\.so\.15\)\)$/\1/p')
# shellcheck disable=SC2086
ldd "$root"/usr/local/bin/* "$root"/usr/local/libexec/dlaunch/* "$root"/usr/local/lib/dlaunch/[aht]* $loaded | grep -o '/[^ :)]*\.so[^ :)]*' | sort -u | while read -r library; do
    case $library in
    "$root"/* | */libdlcoll.so*) ;;
    *) install -D -m 755 "$library" "$root$library" ;;
    esac
done
for library in $loaded; do install -D -m 755 "$library" "$root$library"; done

cat >"$root/etc/passwd" <<PASSWD
root:x:0:0:root:/:/sbin/nologin
dlaunch:x:65532:65532:dlaunch:/tmp:/sbin/nologin
PASSWD
printf 'root:x:0:\ndlaunch:x:65532:\n' >"$root/etc/group"
find "$root" -exec touch -h -d @0 {} +
