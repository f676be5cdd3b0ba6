#!/bin/bash
# What only a machine with a GPU can show, in one go: `make test-gpu`, or tests/gpu/run.sh [BUILD].
# Prints the machine's facts, then each case as PASS, FAIL or CANNOT with the reason, and writes both
# into tests/gpu/RESULTS.md. The limits sum to less than 16 minutes on one GPU: LIMITS_S in cases.c, and
# 225 s here. tests/gpu/first-contact has an order for the first half an hour on such a machine.
# Exit status: 0; 1: a case has failed; 77: the driver, a device or NCCL is missing, as a line says.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath "${1:-build}")
cuda=${CUDA_HOME:-/usr/local/cuda}
results=tests/gpu/RESULTS.md
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

# NCCL of a PyTorch that is installed here serves where the loader finds none, with its header.
if ! ldconfig -p | grep -q 'libnccl\.so\.2' && [ -z "${DLCOLL_NCCL_LIB:-}" ]; then
    DLCOLL_NCCL_LIB=$(python3 -c 'import nvidia, glob
print(next((f for p in nvidia.__path__ for f in glob.glob(p + "/nccl/lib/libnccl.so.2")), ""))' 2>/dev/null)
    if [ -n "$DLCOLL_NCCL_LIB" ]; then export DLCOLL_NCCL_LIB; else unset DLCOLL_NCCL_LIB; fi
fi
nccl_home=${DLCOLL_NCCL_LIB:+$(dirname "$DLCOLL_NCCL_LIB")/..}
timeout -k 2 60 "$build/tests/gpu/cases" facts >"$work/devices" 2>&1
case $? in
0) ;;
77) sed 's|^SKIPPED: |SKIPPED: tests/gpu: |' "$work/devices"; exit 77 ;;
*) cat "$work/devices"; echo "tests/gpu: the facts of this machine cannot be read"; exit 1 ;;
esac
row() { printf '| %s | %s | %s s | %s |\n' "$1" "$2" "$3" "$4" | tee -a "$work/rows"; [ "$2" != FAIL ] || failed=1; }
# NAME LIMIT COMMAND...: the command's last line is the note.
check() {
    name=$1 limit=$2; shift 2
    start=$SECONDS
    if timeout -k 2 "$limit" "$@" >"$work/out" 2>&1; then verdict=PASS; else verdict="FAIL"; fi
    row "$name" "$verdict" $((SECONDS - start)) "$(tail -n 1 "$work/out" | tr '|' '/')"
}
# NAME LIMIT PATTERN COMMAND...: what the command prints must match.
sees() {
    name=$1 limit=$2 pattern=$3; shift 3
    start=$SECONDS
    timeout -s TERM -k 5 "$limit" "$@" >"$work/out" 2>&1
    if grep -qE "$pattern" "$work/out"; then
        row "$name" PASS $((SECONDS - start)) "$(grep -m 1 -E "$pattern" "$work/out" | cut -c 1-250 | tr '|' '/')"
    else
        row "$name" FAIL $((SECONDS - start)) "nothing like '$(tr '|' ' ' <<<"$pattern")': $(tail -n 1 "$work/out" | cut -c 1-200 | tr '|' '/')"
    fi
}

{
    echo '# On machines with a GPU'
    echo
    echo "Measured on $(date -u +%Y-%m-%d) by \`make test-gpu\`."
    echo
    sed 's/^/    /' "$work/devices"
    echo "    driver: $(sed -n '1s/.*Module *//p' /proc/driver/nvidia/version 2>/dev/null)"
    echo "    NCCL: ${DLCOLL_NCCL_LIB:-$(ldconfig -p | sed -n 's/.*libnccl\.so\.2 .* => //p' | head -n 1)}"
    echo "    locked memory: $(ulimit -l) KiB"
    echo
    echo '| case | result | time | note |'
    echo '|---|---|---|---|'
} | tee "$work/facts"
"$build/tests/gpu/cases" | tee -a "$work/rows"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
check 'dlcoll_perf, one rank, every element compared' 30 "$build/dlaunch" --nproc_per_node 1 \
    "$build/dlcoll_perf" all -b 4K -e 256K -f 16 -n 2 -w 1 -d all -o sum,prod,min,max,avg --backend nccl
check 'dlcoll_perf, plain device memory, by stream' 15 "$build/dlaunch" --nproc_per_node 1 \
    "$build/dlcoll_perf" all_reduce,all_gather -b 4K -e 64M -f 64 -n 3 -w 1 -S 20 -M device --backend nccl
# A program that uses NCCL itself: by the plug-in, then by RAS and the stacks.
mkdir "$work/plugin" "$work/ras"
sees 'plug-in: the rank that hangs is named' 60 'the job hangs: rank 1 .*rank 0 waits in all_reduce' \
    "$build/dlaunch" --nproc_per_node 2 --hang_after 10 --on_hang end "$build/tests/gpu/cases" plain-hang "$work/plugin"
sees 'RAS or stacks: the rank that hangs is named' 60 'the job hangs: rank 1' \
    env NCCL_PROFILER_PLUGIN=none "$build/dlaunch" --nproc_per_node 2 --hang_after 10 --on_hang end \
    "$build/tests/gpu/cases" plain-hang "$work/ras"
if [ -r /dev/kmsg ] || ldconfig -p | grep -q 'libnvidia-ml\.so\.1'; then
    sees 'Xid error in the report' 30 'Xid' "$build/dlaunch" --nproc_per_node 1 --virtual_local_rank "$build/tests/gpu/cases" trap
else
    row 'Xid error in the report' CANNOT 0 'neither /dev/kmsg nor NVML can be read here'
fi
header=
for d in "$cuda/include" /usr/include /usr/local/include ${nccl_home:+"$nccl_home/include"}; do [ -e "$d/nccl.h" ] && header=$d; done
if [ -z "$header" ]; then
    row 'nccl_allreduce' CANNOT 0 'nccl.h is missing: set CUDA_HOME, or install the headers of NCCL'
elif [ ! -e "$cuda/include/cuda_runtime.h" ] || ! command -v cc >/dev/null; then
    row 'nccl_allreduce' CANNOT 0 "a compiler or CUDA's toolkit is missing: set CUDA_HOME"
elif ! cc -DUSE_NCCL -o "$work/nccl_allreduce" examples/nccl_allreduce.c -Icollectives -I"$header" \
    -I"$cuda/include" -L"$build" -ldlcoll -L"$cuda/lib64" ${nccl_home:+-L"$nccl_home/lib"} -lcudart \
    -l:libnccl.so.2 >"$work/out" 2>&1; then
    row 'nccl_allreduce' FAIL 0 "it does not compile: $(head -n 1 "$work/out")"
else
    check 'nccl_allreduce' 15 env \
        LD_LIBRARY_PATH="$build:$cuda/lib64${nccl_home:+:$nccl_home/lib}" "$build/dlaunch" --nproc_per_node 1 "$work/nccl_allreduce"
fi
cat "$work/facts" "$work/rows" >"$results"
exit "$failed"
