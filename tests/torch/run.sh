#!/bin/bash
# Everything about PyTorch, with each PyTorch that can be had: the current one of the package index
# (installed into $TORCH_VENV) and Debian's. TORCHES="current" or "debian" leaves one out.
set -u
here=$(dirname "$0")
export BUILD=${BUILD:-build} TEST_LIMIT=${TEST_LIMIT:-1500}
venv=${TORCH_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/dlaunch/torch}
links=$(mktemp -d) || exit 1
trap 'rm -rf "$links"' EXIT
programs=()

# A test program is one file for tests/run.sh: a few lines that run it by the right interpreter.
add() { # name of the PyTorch, interpreter
    for t in store_peer "test_torchrun --live" test_scripts test_hosts test_detection; do
        local name=${t%% *} args=
        [ "$t" = "$name" ] || args=${t#* }
        printf '#!/bin/sh\nexec %s %s/%s.py %s\n' "$2" "$here" "$name" "$args" >"$links/$1_$name"
        chmod +x "$links/$1_$name"
        programs+=("$links/$1_$name")
    done
}

for torch in ${TORCHES:-current debian}; do
    case $torch in
    current)
        if "$here/install.sh" "$venv"; then add current "$venv/bin/python"; else
            echo "SKIPPED: the current PyTorch: it could not be installed"; fi ;;
    debian)
        if /usr/bin/python3 -c 'import torch' 2>/dev/null; then add debian /usr/bin/python3; else
            echo "SKIPPED: Debian's PyTorch: python3-torch is not installed"; fi ;;
    esac
done
[ ${#programs[@]} -gt 0 ] || { echo "SKIPPED: there is no PyTorch to test with"; exit 0; }
JOBS=1 tests/run.sh "${programs[@]}"
