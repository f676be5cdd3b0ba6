#!/bin/sh
# Installs what building, testing or benchmarking dlaunch needs and is not there yet: with apt-get (as
# root, or through sudo), or, where there is none, says what to install. Quick, and silent, when nothing
# is missing.
#   conf/install-deps.sh [build|test|multihost|wheel|cross-aarch64|deb|metrics|pods|slurm|mpi|etcd|image|torch|torch-debian|bench|...]
set -u

missing=
lack() {
    for package; do
        case " $missing " in *" $package "*) ;; *) missing="$missing $package" ;; esac
    done
}
have() { command -v "$1" >/dev/null 2>&1; }
have_lib() { have pkg-config && pkg-config --exists "$1"; }
lack_lib() { have_lib "$1" || [ -e "/usr/include/$3" ] || lack "$2"; }

need() { # set of packages by Debian's names
    case $1 in
    build)
        compiler=${CC:-gcc}
        compiler=${compiler#ccache }
        have "${compiler%% *}" || lack "$(basename "${compiler%% *}")"
        [ -e /usr/include/stdio.h ] || lack libc6-dev
        have make || lack make
        have pkg-config || lack pkg-config
        lack_lib libuv libuv1-dev uv.h
        lack_lib inih libinih-dev ini.h
        lack_lib jansson libjansson-dev jansson.h
        lack_lib hwloc libhwloc-dev hwloc.h
        lack_lib openssl libssl-dev openssl/ssl.h
        ;;
    test)
        need build
        lack_lib check check check.h
        python3 -c 'import json' 2>/dev/null || lack python3
        have g++ || lack g++
        have mandoc || lack mandoc
        have gdb || lack gdb
        ldconfig -p 2>/dev/null | grep -q 'libdw\.so\.1' || lack libdw1
        python3 -c 'import numpy' 2>/dev/null || /usr/bin/python3 -c 'import numpy' 2>/dev/null || lack python3-numpy
        ;;
    multihost)
        need test
        have ip || lack iproute2
        have nft || lack nftables
        [ -x /usr/sbin/sshd ] || lack openssh-server
        have ssh || lack openssh-client
        ;;
    wheel)
        need test
        have objdump || lack binutils
        /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || lack python3-venv
        ;;
    cross-aarch64)
        have aarch64-linux-gnu-gcc || lack gcc-aarch64-linux-gnu
        have qemu-aarch64 || lack qemu-user
        ;;
    cross-x86_64)
        have x86_64-linux-gnu-gcc || lack gcc-x86-64-linux-gnu
        have qemu-x86_64 || lack qemu-user
        ;;
    deb)
        need test
        have objdump || lack binutils
        have dpkg-architecture || lack dpkg-dev
        have patchelf || lack patchelf
        have lintian || lack lintian
        have mmdebstrap || lack mmdebstrap
        ;;
    pods)
        need test
        have runc || lack runc
        have ip || lack iproute2
        have nsenter || lack util-linux
        /usr/bin/python3 -c 'import yaml' 2>/dev/null || lack python3-yaml
        /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || lack python3-venv
        if ! busybox=$(command -v busybox) || ldd "$busybox" >/dev/null 2>&1; then lack busybox-static; fi
        ;;
    slurm)
        need test
        have ip || lack iproute2
        have nsenter || lack util-linux
        have ps || lack procps
        have munged || lack munge
        have slurmctld || lack slurmctld
        have slurmd || lack slurmd
        have srun || lack slurm-client
        ;;
    etcd)
        need test
        have ip || lack iproute2
        have etcd || lack etcd-server
        have etcdctl || lack etcd-client
        have openssl || lack openssl
        ;;
    image)
        need pods
        have buildah || lack buildah
        ;;
    torch)
        need test
        have nsenter || lack util-linux
        have ip || lack iproute2
        have nm || lack binutils
        /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || lack python3-venv
        python_include=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)
        [ -e "$python_include/Python.h" ] || lack python3-dev
        ;;
    torch-debian)
        /usr/bin/python3 -c 'import torch' 2>/dev/null || lack python3-torch
        ;;
    metrics) # promtool, for tests/integration/test_metrics
        need test
        have promtool || lack prometheus
        ;;
    mpi)
        need test
        have mpicc.mpich || lack mpich libmpich-dev
        have mpicc.openmpi || lack openmpi-bin libopenmpi-dev
        [ -e /usr/include/slurm/pmi2.h ] || lack libpmi2-0-dev
        pkg-config --exists pmix 2>/dev/null || lack libpmix-dev # with libpmix2, which dlaunch loads
        have ip || lack iproute2
        ;;
    bench)
        need test
        have mpiexec.hydra || lack mpich libmpich-dev
        have mpirun.openmpi || lack openmpi-bin libopenmpi-dev
        /usr/bin/python3 -c 'import torch' 2>/dev/null || lack python3-torch
        [ -e /usr/include/gloo/config.h ] || lack libgloo-dev
        ;;
    fuzz)
        need build
        have clang || lack clang
        ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer* >/dev/null 2>&1 || lack libclang-rt-14-dev
        ;;
    lint)
        need build
        have clang-format || lack clang-format
        have mandoc || lack mandoc
        have shellcheck || lack shellcheck
        ;;
    *)
        echo "$0: what is '$1'? (build test multihost wheel cross-aarch64 cross-x86_64 deb metrics pods slurm mpi etcd image torch torch-debian bench fuzz lint)" >&2
        exit 2
        ;;
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
    have sudo || { echo "Not installed yet. As root: apt-get install$missing" >&2; exit 1; }
    sudo='sudo DEBIAN_FRONTEND=noninteractive'
fi
export DEBIAN_FRONTEND=noninteractive
echo "Installing with apt-get:$missing"
# A fresh machine has no package lists yet; those of another one may be out of date.
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
    { $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null; } ||
    { echo "Could not install:$missing" >&2; exit 1; }
