#!/bin/bash
# The tests with real PyTorch: with the current one of the package index (installed into $TORCH_VENV) and with
# Debian's. TORCHES="current" or "debian" selects one of them; TORCH_TESTS selects programs. TORCH_SECONDS limits the
# whole time, installation included; after that, only the first check of each remaining program runs.
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

skipped() { echo "SKIPPED: $1"; }

# Runs a command within the time limit. If it fails, prints the last line of its output, or that time ran out.
in_time() {
    local output left=$((TORCH_UNTIL - $(date +%s)))
    output=$(timeout -k 10 $((left > 0 ? left : 1)) "$@" 2>&1)
    case $? in
    0) return 0 ;;
    124 | 137) echo "it exceeds the time limit of $seconds s" ;;
    *) echo "${output##*$'\n'}" ;;
    esac
    return 1
}

# tests/run.sh runs files, so each test program gets a script that runs it with the right interpreter.
add() { # name of the PyTorch, interpreter
    local name command
    for name in ${TORCH_TESTS:-store_peer test_scripts test_warm_torch test_hosts test_backend test_detection
        test_torchrun pytorch_own sanitized}; do
        command=$(printf '%q %q' "$2" "$here/$name.py")
        [ "$name" != test_torchrun ] || command="$alone $command --live"
        printf '#!/bin/bash\nexec %s\n' "$command" >"$links/$1_$name"
        chmod +x "$links/$1_$name"
        programs+=("$links/$1_$name")
    done
}

if why=$(in_time conf/install-deps.sh torch); then
    # Debian's torchrun uses port 29500 by default, so the tests get a network namespace of their own.
    if unshare --net ip link set lo up 2>/dev/null; then
        alone="unshare --net sh -c 'ip link set lo up && exec \"\$0\" \"\$@\"'"
    fi
    for torch in ${TORCHES:-current debian}; do
        case $torch in
        current)
            echo "PyTorch ${TORCH_VERSION:-of the package index}: 1.3 GB, in $venv (TORCH_VENV selects the folder)"
            if why=$(in_time "$here/install.sh" "$venv"); then add current "$venv/bin/python"; else
                skipped "the current PyTorch: $why"; fi ;;
        debian)
            if why=$(in_time conf/install-deps.sh torch-debian); then add debian /usr/bin/python3; else
                skipped "Debian's PyTorch: $why"; fi ;;
        esac
    done
else
    skipped "the requirements of the tests with PyTorch: $why"
fi
[ ${#programs[@]} -gt 0 ] || exit 0
JOBS=1 tests/run.sh "${programs[@]}"
