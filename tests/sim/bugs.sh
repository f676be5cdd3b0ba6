#!/bin/bash
# bugs.sh PROGRAM...: tells each simulator that has a bug planted in it scenarios until one shows it, and
# prints how many that took and which invariant was broken: by that one, and by three others where they
# are quickly found. Exits 1 when SIM_SEEDS scenarios do not show it, or when an invariant is left that
# nothing has broken.
set -u
cd "$(dirname "$0")" || exit 1
seeds=${SIM_SEEDS:-300000} broken="" bad=0
printf '%-60s %9s  %s\n' "planted bug" scenarios "found by"
# tell PROGRAM FROM COUNT: "STORY INVARIANT" of the first that goes wrong
tell() {
    (cd ../.. && TEST_FILTER=scenarios CK_FORK=no CK_DEFAULT_TIMEOUT=0 SIM_FROM=$2 SIM_SEEDS=$3 "$1" 2>&1) |
        sed -n 's/^seed \([0-9]*\) at [0-9.]*: \(I[0-9]*\): .*/\1 \2/p' | head -n 1
}

for program; do
    name=$(basename "$program")
    read -r scenario found <<<"$(tell "$program" 1 "$seeds")"
    [ "${scenario:-1000}" -ge 1000 ] || for from in 1000001 2000001 3000001; do
        read -r _ other <<<"$(tell "$program" "$from" 1000)"
        [[ " $found " == *" ${other:-$found} "* ]] || found="$found $other"
    done
    printf '%-60s %9s  %s\n' "$(head -n 1 "bugs/$name.patch")" "$scenario" "$found"
    [ -n "$found" ] || { echo "  not found in $seeds scenarios"; bad=1; }
    broken="$broken $found "
done
# The assertions (I16) find what would break I17 and I18 before that does.
for i in {1..16} {19..26}; do
    [[ $broken == *" I$i "* ]] || { echo "no bug here has broken I$i"; bad=1; }
done
exit $bad
