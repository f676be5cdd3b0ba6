#!/bin/bash
# run.sh DIR SECONDS TARGET...: runs each libFuzzer target in DIR for that long, from its corpus, and
# prints how many inputs it tried. New inputs are kept beside the targets. Exits 1 at the first finding,
# which is kept too.
set -u
dir=$1 seconds=$2; shift 2
for t in "$@"; do
    mkdir -p "$dir/corpus-$t"
    args=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
          -artifact_prefix="$dir/$t-" "$dir/corpus-$t" "tests/fuzz/corpus/$t")
    [ -f "tests/fuzz/$t.dict" ] && args+=(-dict="tests/fuzz/$t.dict")
    if ! "$dir/$t" "${args[@]}" >"$dir/$t.log" 2>&1; then
        tail -n 60 "$dir/$t.log"
        echo "fuzz_$t: a finding, see $dir/$t.log and $dir/$t-*"
        exit 1
    fi
    printf '%-34s %s inputs in %s s, no finding\n' "fuzz_$t" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/$t.log")" "$seconds"
done
