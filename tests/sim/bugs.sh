#!/bin/bash
# bugs.sh PROGRAM...: tells each simulator that has a bug planted in it stories until one shows it, and
# prints how many that took and which invariant was broken. Exits 1 when SIM_SEEDS stories do not show
# it, or when an invariant is left that nothing has broken.
set -u
cd "$(dirname "$0")" || exit 1
seeds=${SIM_SEEDS:-300000} broken="" bad=0
printf '%-60s %9s  %s\n' "planted bug" stories "found by"
for program; do
    name=$(basename "$program")
    out=$(cd ../.. && TEST_FILTER=stories CK_FORK=no CK_DEFAULT_TIMEOUT=0 SIM_SEEDS=$seeds "$program" 2>&1)
    found=$(sed -n 's/^seed \([0-9]*\) at [0-9.]*: \(I[0-9]*\): .*/\1 \2/p' <<<"$out" | head -n 1)
    printf '%-60s %9s  %s\n' "$(head -n 1 "bugs/$name.patch")" "${found% *}" "${found#* }"
    [ -n "$found" ] || { echo "  not found in $seeds stories"; bad=1; }
    broken="$broken ${found#* } "
done
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    [[ $broken == *" I$i "* ]] || { echo "no bug here has broken I$i"; bad=1; }
done
exit $bad
