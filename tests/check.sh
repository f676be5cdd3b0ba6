#!/bin/bash
# Runs one test program, or a case of it, until it fails: tests/check.sh PROGRAM [TIMES] [CASE]
# A case is a group of tests in a program of Check's, an argument of a Python or shell test. Exit status: the test's; 2
# if there is no such test.
set -u
program=$1 times=${2:-1} case=${3:-}
[ -n "$program" ] || { echo "make check: T is missing; T=unit/test_plan is a test, T=integration/test_warm.py another" >&2; exit 2; }
[[ $times =~ ^[1-9][0-9]*$ ]] || { echo "make check: REPEAT='$times' is not a number from 1 on" >&2; exit 2; }
[ -x "$program" ] || { echo "make check: T: $program is not a test" >&2; exit 2; }
args=()
case $program in
*.py | *.sh) args=(${case:+"$case"}) ;;
*) [ -z "$case" ] || export CK_RUN_CASE=$case ;;
esac
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for ((i = 1; i <= times; i++)); do
    if [ "$times" = 1 ]; then
        "$program" "${args[@]}" || exit
    elif ! "$program" "${args[@]}" >"$log" 2>&1; then
        cat "$log"
        echo "$program: run $i of $times failed"
        exit 1
    fi
done
[ "$times" = 1 ] || echo "$program: $times runs passed"
