#!/bin/bash
# Everything about PyTorch, with each PyTorch that can be had: the current one of the package index
# (installed into $TORCH_VENV) and Debian's. TORCHES="current" or "debian" leaves one out.
# TORCH_TESTS: only these programs. TORCH_SECONDS: so long may all of it take, the installation too; of what has
# not begun by then only the first check of each program is made.
set -u
here=$(dirname "$0")
seconds=${TORCH_SECONDS:-7200}
TORCH_UNTIL=$(($(date +%s) + seconds))
export TORCH_UNTIL BUILD=${BUILD:-build} TEST_LIMIT=${TEST_LIMIT:-3000}
venv=${TORCH_VENV:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/dlaunch/torch}
links=$(mktemp -d) || exit 1
trap 'rm -rf "$links"' EXIT
programs=()
alone=

left_out() { echo "SKIPPED: $1"; }

# Prints the last line of what it ran, and why it ended, if that is not well.
in_time() {
    local said left=$((TORCH_UNTIL - $(date +%s)))
    said=$(timeout -k 10 $((left > 0 ? left : 1)) "$@" 2>&1)
    case $? in
    0) return 0 ;;
    124 | 137) echo "it takes more than the $seconds s that there are" ;;
    *) echo "${said##*$'\n'}" ;;
    esac
    return 1
}

# A test program is one file for tests/run.sh: a few lines that run it by the right interpreter.
add() { # name of the PyTorch, interpreter
    local name command
    for name in ${TORCH_TESTS:-store_peer test_scripts test_hosts test_detection test_torchrun}; do
        command=$(printf '%q %q' "$2" "$here/$name.py")
        [ "$name" != test_torchrun ] || command="$alone $command --live"
        printf '#!/bin/bash\nexec %s\n' "$command" >"$links/$1_$name"
        chmod +x "$links/$1_$name"
        programs+=("$links/$1_$name")
    done
}

if why=$(in_time conf/install-deps.sh torch); then
    # Debian's torchrun has port 29500 unless it is told another: nobody else may have it then.
    if unshare --net ip link set lo up 2>/dev/null; then
        alone="unshare --net sh -c 'ip link set lo up && exec \"\$0\" \"\$@\"'"
    fi
    for torch in ${TORCHES:-current debian}; do
        case $torch in
        current)
            echo "PyTorch ${TORCH_VERSION:-of the package index}: 1.3 GB, in $venv (TORCH_VENV says where)"
            if why=$(in_time "$here/install.sh" "$venv"); then add current "$venv/bin/python"; else
                left_out "the current PyTorch: $why"; fi ;;
        debian)
            if why=$(in_time conf/install-deps.sh torch-debian); then add debian /usr/bin/python3; else
                left_out "Debian's PyTorch: $why"; fi ;;
        esac
    done
else
    left_out "what the tests with PyTorch need: $why"
fi
[ ${#programs[@]} -gt 0 ] || exit 0
JOBS=1 tests/run.sh "${programs[@]}"
