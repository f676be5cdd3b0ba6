#!/bin/sh
# Installs what building, testing or benchmarking dlaunch needs and is not there yet, with the system's
# package manager (as root, or through sudo), or says what to install.
#   conf/install-deps.sh build|test|multihost|bench|torch ...
set -u

missing=
lack() { missing="$missing $*"; }
have() { command -v "$1" >/dev/null 2>&1; }
have_lib() { have pkg-config && pkg-config --exists "$1"; }

need() { # set of packages by Debian's names
    case $1 in
    build)
        have "${CC:-gcc}" || lack gcc libc6-dev
        have make || lack make
        have pkg-config || lack pkg-config
        have_lib libuv || lack libuv1-dev
        have_lib inih || lack libinih-dev
        have_lib jansson || lack libjansson-dev
        have_lib hwloc || lack libhwloc-dev
        ;;
    test)
        need build
        have_lib check || lack check
        have python3 || lack python3-minimal
        have g++ || lack g++
        ;;
    multihost)
        need test
        have ip || lack iproute2
        have nft || lack nftables
        ;;
    fuzz) need build; have clang || lack clang; ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer* >/dev/null 2>&1 || lack libclang-rt-14-dev ;;
    bench)
        need test
        have mpiexec.hydra || lack mpich libmpich-dev
        have mpirun.openmpi || lack openmpi-bin libopenmpi-dev
        /usr/bin/python3 -c 'import torch' 2>/dev/null || lack python3-torch
        [ -e /usr/include/gloo/config.h ] || lack libgloo-dev
        ;;
    lint) need build; have clang-format || lack clang-format; have mandoc || lack mandoc; have shellcheck || lack shellcheck ;;
    *) echo "$0: what is '$1'? (build test multihost bench fuzz lint)" >&2; exit 2 ;;
    esac
}
[ $# -gt 0 ] || set -- build
for set in "$@"; do need "$set"; done
[ -z "$missing" ] && exit 0

if ! have apt-get; then
    echo "Please install what these Debian packages hold, then try again:$missing" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    have sudo || { echo "As root: apt-get install$missing" >&2; exit 1; }
    sudo=sudo
fi
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# A fresh machine has no package lists yet; one that has them may be out of date.
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
    { $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null; } ||
    { echo "Could not install:$missing" >&2; exit 1; }
