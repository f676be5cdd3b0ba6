#!/bin/bash
# demo.sh: two launchers with four workers each train a small network; one worker is killed meanwhile.
#   examples/demo.sh [BUILD_DIR]      (make demo)
# Ends with 0 when the job has recovered from its checkpoint and the test accuracy is 0.95 or more.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build} epochs=60 kill_at=30 restarts=3
train=$build/examples/train
export OMP_NUM_THREADS=1

tmp=$(mktemp -d) || exit 1
launchers=
finish() {
    # shellcheck disable=SC2086
    [ -z "$launchers" ] || kill $launchers 2>/dev/null
    wait
    rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 130' INT TERM

if [ -t 1 ]; then bold=$'\e[1m' red=$'\e[1;31m' green=$'\e[1;32m' plain=$'\e[0m'; else bold='' red='' green='' plain=''; fi
fail() {
    printf '\n%sThe demo failed: %s%s\n' "$red" "$*" "$plain" >&2
    exit 1
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }

# A port on which nothing listens.
for _ in {1..50}; do
    port=$((20000 + RANDOM % 10000))
    (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
done

# start NODE: starts a launcher; its output goes into the pipe, with the number of the node in front.
start() {
    "$build/dlaunch" --nnodes 2 --node_rank "$1" --nproc_per_node 4 --master_port "$port" \
        --max_restarts "$restarts" "$train" --epochs "$epochs" --checkpoint "$tmp/state.ckpt" \
        --out "$tmp/result" > >(sed -u "s/^/$1 /" >"$tmp/pipe") 2>&1 &
    launchers="$launchers $!"
}

cat <<END
Two launchers with four workers each, as on two machines:

  ${bold}dlaunch --nnodes 2 --node_rank 0 --nproc_per_node 4 --max_restarts $restarts \\
          --master_port $port train --epochs $epochs --checkpoint state.ckpt
  dlaunch --nnodes 2 --node_rank 1 ...${plain} (the rest is the same)

Worker 5, on node 1, will be killed after epoch $kill_at.

END
mkfifo "$tmp/pipe" || exit 1
exec 3<>"$tmp/pipe"
begun=$(now_ms)
start 0
start 1

node1=${launchers##* } victim='' killed_ms='' resumed='' back_ms='' counted='' ended=0
while [ "$ended" -lt 2 ]; do
    if ! IFS= read -r -t 0.2 -u 3 line; then
        ended=0
        for pid in $launchers; do kill -0 "$pid" 2>/dev/null || ended=$((ended + 1)); done
        [ $(($(now_ms) - begun)) -lt 100000 ] || fail "the job did not end within 100 s"
        continue
    fi
    text=${line#? }
    show=1
    case $text in
    'epoch '*)
        read -r _ epoch _ <<<"${text/\// }"
        [ $((epoch % 10)) = 0 ] || [ "$epoch" = 1 ] || show=
        if [ -z "$victim" ]; then # the control socket exists once the workers run
            victim=$("$build/dlaunchctl" -p "$node1" status 2>/dev/null |
                awk '$1 == 5 && $2 == 1 { print $3 }')
        fi
        ;;
    'resumed after epoch '*)
        back_ms=$(now_ms)
        read -r _ _ _ resumed _ <<<"$text"
        ;;
    *'restart '*' of '*) counted=${text##*; } ;;
    esac
    [ -z "$show" ] || printf 'node %s | %.200s\n' "${line%% *}" "$text"
    if [ -n "$victim" ] && [ -z "$killed_ms" ] && [ "${epoch:-0}" -ge "$kill_at" ]; then
        killed_ms=$(now_ms)
        kill -9 "$victim" || fail "worker 5 (process $victim) has exited already"
        printf '%s       > kill -9 %s   (worker 5, on node 1)%s\n' "$red" "$victim" "$plain"
    fi
done
# shellcheck disable=SC2086
for pid in $launchers; do
    wait "$pid" || fail "a launcher ended with exit status $?"
done
launchers=

[ -n "$killed_ms" ] || fail "worker 5 was not found"
[ -n "$counted" ] || fail "no restart was seen"
[ -n "$resumed" ] || fail "the job did not resume from a checkpoint"
read -r _ _ _ accuracy _ parameters <"$tmp/result" || fail "the job wrote no result"

printf '\nThe same training on one worker, without a failure:\n\n'
printf '  %sdlaunch train --epochs %s%s\n\n' "$bold" "$epochs" "$plain"
"$build/dlaunch" "$train" --epochs "$epochs" --out "$tmp/alone" | tail -1 | sed 's/^/node 0 | /'
read -r _ _ _ _ _ alone <"$tmp/alone" || fail "the single worker wrote no result"

awk -v a="$accuracy" 'BEGIN { exit !(a >= 0.95) }' || fail "test accuracy $accuracy is below 0.95"
[ "$parameters" = "$alone" ] || fail "the two networks differ"
printf '\n%sRecovered: %s, from the checkpoint of epoch %s, %s ms after the kill.%s\n' \
    "$green" "$counted" "$resumed" "$((back_ms - killed_ms))" "$plain"
printf '%sTest accuracy %s. The network equals that of one worker, bit for bit.%s\n' \
    "$green" "$accuracy" "$plain"
