#!/bin/bash
# The declarations of collectives/nccl/nccl_api.h beside NVIDIA's own headers: each cuda.h with each nccl.h, by the
# compiler. `make test-headers`, or tests/packages/headers.sh: the headers come from NVIDIA's wheels in the package
# index, and stay in $XDG_CACHE_HOME/dlaunch/headers (about 200 MB are downloaded for each NCCL, 400 KiB stay).
#     HEADERS_CUDA="12.4.127 ..."  HEADERS_NCCL="2.19.3 ..."     other versions
# What cannot be had is skipped, and a line says why. Exit status: 0; 1: a declaration differs.
set -u
cd "$(dirname "$0")/../.." || exit 1
cudas=${HEADERS_CUDA:-12.4.127 12.9.79 13.0.96}
nccls=${HEADERS_NCCL:-2.19.3 2.21.5 2.23.4 2.24.3 2.26.5 2.27.7 2.28.9 2.29.7 2.30.7 2.32.3}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dlaunch/headers
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
checks=0 failures=0

# fetch NAME WHEEL...: the include folders of the wheels become $cache/NAME. 1: they cannot be had, as a line says.
fetch() {
    local name=$1 wheel
    shift
    [ -e "$cache/$name/whole" ] && return 0
    mkdir -p "$cache/$name"
    for wheel; do
        rm -rf "$work/wheel"
        if ! timeout 300 python3 -m pip download -q --no-deps --only-binary :all: -d "$work/wheel" "$wheel" >"$work/why" 2>&1; then
            echo "SKIPPED: headers of $name: the package index gives no $wheel: $(tail -n 1 "$work/why")"
            return 1
        fi
        python3 - "$work/wheel" "$cache/$name" <<'PYTHON' || return 1
import glob, os, sys, zipfile
for wheel in glob.glob(sys.argv[1] + "/*.whl"):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            folder, include, rest = name.partition("/include/")
            if include and rest.endswith((".h", ".hpp")):
                path = os.path.join(sys.argv[2], rest)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(z.read(name))
PYTHON
        rm -rf "$work/wheel"
    done
    touch "$cache/$name/whole"
}

for v in $cudas; do
    case $v in
    12.*) fetch "cuda-$v" "nvidia-cuda-runtime-cu12==$v" "nvidia-cuda-nvcc-cu12==${v%.*}.*" ;;
    *) fetch "cuda-$v" "nvidia-cuda-runtime==$v" "nvidia-cuda-crt==${v%.*}.*" ;;
    esac
done
for v in $nccls; do fetch "nccl-$v" "nvidia-nccl-cu12==$v"; done
for cuda in $cudas; do
    for nccl in $nccls; do
        if [ ! -e "$cache/cuda-$cuda/whole" ] || [ ! -e "$cache/nccl-$nccl/whole" ]; then continue; fi
        checks=$((checks + 1))
        if ! ${CC:-cc} -std=gnu11 -Wall -Werror -I. -DHAVE_NCCL_H -isystem "$cache/cuda-$cuda" -isystem "$cache/nccl-$nccl" \
            -fsyntax-only collectives/nccl/nccl_abi.c >"$work/why" 2>&1; then
            failures=$((failures + 1))
            echo "headers: with CUDA $cuda and NCCL $nccl: $(grep -m 1 -E 'error' "$work/why")"
        fi
    done
done
echo "$((checks ? 100 * (checks - failures) / checks : 100))%: Checks: $checks, Failures: $failures, Errors: 0"
[ "$failures" = 0 ]
