#!/bin/sh
# Unpacks what a build for another processor needs, from Debian's packages for that processor, into a folder. The
# packages of this machine and apt's lists stay as they are.
#   conf/make-sysroot.sh aarch64|x86_64 FOLDER
# Quick when FOLDER is there. Needs apt-get, dpkg-deb and a package mirror.
set -eu
die() { echo "make-sysroot: $*" >&2; exit 1; }
[ $# = 2 ] || { sed -n '4s/^#  *//p' "$0" >&2; exit 2; }
case $1 in
aarch64) arch=arm64 ;;
x86_64) arch=amd64 ;;
*) die "ARCH=$1 is not known (aarch64 or x86_64)" ;;
esac
[ ! -d "$2" ] || exit 0
{ command -v apt-get && command -v dpkg-deb; } >/dev/null ||
    die "libraries for $1 are taken from Debian's packages, but apt-get or dpkg-deb is missing"

# To build: the C library and what `make` links. To run it (qemu-user): what dlaunch loads when it needs it.
build="libc6-dev libc6 linux-libc-dev libuv1-dev libinih-dev libjansson-dev libhwloc-dev libssl-dev"
run="libssl3 libhwloc15 libudev1 libcap2"

echo "Unpacking Debian's $arch packages into $2"
mkdir -p "$(dirname "$2")"
work=$(mktemp -d "$(realpath "$(dirname "$2")")/sysroot.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/debs" "$work/root"
: >"$work/apt/status"
apt() {
    apt-get -qq -o APT::Architecture=$arch -o APT::Architectures=$arch -o APT::Sandbox::User=root \
        -o Dir::State::status="$work/apt/status" -o Dir::State::lists="$work/apt/lists" \
        -o Dir::Cache="$work/apt" -o Acquire::Languages=none "$@"
}
apt update >"$work/log" 2>&1 || true # a source without this architecture is not an error if the rest is there
# shellcheck disable=SC2086  # lists of packages
(cd "$work/debs" && apt download $build $run) >>"$work/log" 2>&1 || die "cannot download them: $(tail -n 1 "$work/log")"
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
# Links are the target's: an absolute one must not lead to this machine's files.
find "$work/root" -type l -lname '/*' | while read -r link; do
    ln -sfrT "$work/root$(readlink "$link")" "$link"
done
chmod 755 "$work/root"
mv "$work/root" "$2"
