#!/bin/bash
# Runs test programs side by side (JOBS, default: CPUs), prints the full output of those that fail, the
# Check summary line of each, at the end one line for each that failed with the names of the failing tests,
# and a last line "N passed, N failed". Exits 1 when anything failed. In a build with sanitizers each of their reports
# counts as a failure, whatever the process that it is about does then. STOP=1: starts no program after the first that
# failed. The names of those that failed are left in $BUILD/tests/failed.
set -u
JOBS=${JOBS:-$(nproc)}
LIMIT=${TEST_LIMIT:-600}
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
chmod 711 "$out" # tests start processes of other users
grep -qs -e -fsanitize= "${1%%/tests/*}/.flags" && mkdir -m 1777 "$out/reports"
# libuv closes descriptors by a bare system call, which ThreadSanitizer does not see. The thread that is given the same
# number next then frees what the sanitizer kept for the old one, or closes the new one that it takes for the old one,
# and seems to race with the thread that had made it, or that prepared to close it.
{
    printf 'race_top:^__interceptor_%s$\n' open pipe2 socket accept4 eventfd dup
    echo 'race:^uv__platform_invalidate_fd$'
} >"$out/tsan.supp"
# unit/test_relay: there is an integration/test_relay, too.
name_of() { local dir=${1%/*}; echo "${dir##*/}/${1##*/}"; }
run_one() {
    name=$(name_of "$1"); start=$(date +%s%N)
    mkdir -p "$2/${name%/*}"
    if [ -d "$2/reports" ]; then
        log="log_path=$2/reports/${name//\//-}"
        export ASAN_OPTIONS="$ASAN_OPTIONS:$log" UBSAN_OPTIONS="$UBSAN_OPTIONS:print_stacktrace=1:$log"
        export TSAN_OPTIONS="$TSAN_OPTIONS:$log:suppressions=$2/tsan.supp"
    fi
    timeout -k 10 "$3" "$1" >"$2/$name.log" 2>&1; rc=$?
    printf '%s %s %s\n' "$rc" "$(( ($(date +%s%N) - start) / 1000000 ))" "$1" >"$2/$name.rc"
    summary=$(grep -aE '^[0-9]+%: Checks: ' "$2/$name.log" | tail -1)
    printf '%-40s %6d ms  %s\n' "$name" "$(( ($(date +%s%N) - start) / 1000000 ))" "${summary:-no summary, exit status $rc}"
    grep -a '^SKIPPED: ' "$2/$name.log"
    if [ "$rc" != 0 ]; then
        [ "$rc" = 124 ] && echo "$name: did not end within $3 s"
        grep -av '^SKIPPED: ' "$2/$name.log" | tail -n 120
    fi
    reports_of "$2" "$name" | head -n 3 | xargs -r tail -n 100 # with their names
    [ -z "${STOP:-}" ] || [ "$rc" = 0 ] || return 255 # xargs starts no more
}
reports_of() {
    grep -alsE 'ERROR: [A-Za-z]+Sanitizer|(WARNING|FATAL): ThreadSanitizer|runtime error: ' "$1/reports/${2//\//-}".* | sort
}
export -f run_one name_of reports_of
# The tests that failed in a log, "case:test, case:test"; Check prints them as file:line:F:case:test:loop: message.
failing_tests() {
    sed -nE 's/^[^: ]+:[0-9]+:[FES]:([^:]*:[^:]*):.*/\1/p' "$1" 2>/dev/null | sort -u | paste -sd, | sed 's/,/, /g'
}
printf '%s\n' "$@" | xargs -P "$JOBS" -I{} bash -c 'run_one "$@"' _ {} "$out" "$LIMIT"
passed=0; failed=0; failures=(); again=()
for t in "$@"; do
    [ -n "${STOP:-}" ] && [ ! -e "$out/$(name_of "$t").rc" ] && continue
    before=${#failures[@]}
    name=$(name_of "$t"); rc=$(cut -d' ' -f1 "$out/$name.rc" 2>/dev/null || echo 99)
    line=$(grep -aE '^[0-9]+%: Checks: ' "$out/$name.log" 2>/dev/null | tail -1)
    if [ -n "$line" ]; then
        checks=$(sed -E 's/.*Checks: ([0-9]+).*/\1/' <<<"$line")
        bad=$(sed -E 's/.*Failures: ([0-9]+), Errors: ([0-9]+).*/\1 \2/' <<<"$line" | awk '{print $1+$2}')
        passed=$((passed + checks - bad)); failed=$((failed + bad))
        [ "$rc" != 0 ] && [ "$bad" = 0 ] && failed=$((failed + 1))
    else
        failed=$((failed + 1)); bad=1
    fi
    reports=$(reports_of "$out" "$name" | wc -l)
    if [ "$reports" != 0 ]; then
        failed=$((failed + 1))
        failures+=("FAILED $name: reports of a sanitizer: $reports")
    fi
    if [ "$rc" != 0 ] || [ "$bad" != 0 ]; then
        tests=$(failing_tests "$out/$name.log")
        case $rc in 99) why="could not be run" ;; 124) why="did not end within $LIMIT s" ;; *) why="exit status $rc" ;; esac
        failures+=("FAILED $name: ${tests:-$why}")
    fi
    [ ${#failures[@]} = "$before" ] || again+=("$t")
done
mkdir -p "${BUILD:-build}/tests" && printf '%s' "${again[@]/%/$'\n'}" >"${BUILD:-build}/tests/failed"
[ ${#failures[@]} = 0 ] || printf '%s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
