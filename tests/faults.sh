#!/bin/sh
# Every row of the table of faults is there, in order, and every test that it names exists and is run.
cd "$(dirname "$0")" || exit 1
bad=0
complain() { printf 'tests/faults.tsv: %s\n' "$1"; bad=1; }

want=$(for s in P:30 N:33 S:16 C:15; do seq -f "${s%:*}%g" "${s#*:}"; done)
have=$(grep -v '^#' faults.tsv | cut -f1)
[ "$want" = "$have" ] || complain "the rows are not P1-P30, N1-N33, S1-S16, C1-C15 in this order"

rows=0; shown=0
while IFS="$(printf '\t')" read -r row fault bound tests; do
    case "$row" in '#'*) continue ;; esac
    rows=$((rows + 1))
    case "$bound" in 'not here: '?*) continue ;; esac
    if [ -z "$fault" ] || [ -z "$bound" ] || [ -z "$tests" ]; then
        complain "$row: a column is empty"
        continue
    fi
    shown=$((shown + 1))
    for t in $tests; do
        file=${t%:*}.c; name=${t#*:}
        if ! grep -q "START_TEST($name)" "$file" || ! grep -q "tcase_add_[a-z_]*test(tc, ${name}[,)]" "$file"; then
            complain "$row: there is no test $name in tests/$file"
        fi
    done
done <faults.tsv
[ $bad = 0 ] && echo "faults: ok ($rows rows, $shown of them shown by tests)"
exit $bad
