#!/bin/bash
# bugs.sh PROGRAM...: which of the bugs that are planted in the rules the search of all states finds: in which
# world, by which invariant. Each world is given up after SIM_ALL_SECONDS (60).
set -u
cd "$(dirname "$0")/../../.." || exit 1
worlds="2 0 F
2 1 F
2 1 K
2 1 R
2 1 S
2 1 L
3 0 F"
found=0
printf '%-62s %-8s %s\n' "planted bug" world "found by"
for program; do
    how=""
    while read -r world; do
        # shellcheck disable=SC2086
        how=$(SIM_ALL_SECONDS="${SIM_ALL_SECONDS:-60}" "$program" $world 2>&1 |
            sed -n 's/^seed [0-9]* at [0-9.]*: \(I[0-9]*\): .*/\1/p; s/^an invariant or.*/I16/p' | head -n 1)
        [ -z "$how" ] || break
    done <<<"$worlds"
    found=$((found + (${#how} > 0)))
    printf '%-62s %-8s %s\n' "$(head -n 1 "tests/sim/bugs/$(basename "$program").patch")" "${how:+$world}" "${how:--}"
done
echo "$found bugs found"
