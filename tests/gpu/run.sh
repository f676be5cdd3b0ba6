#!/bin/bash
# What only a machine with a GPU can show, in one go: `make test-gpu`, or tests/gpu/run.sh [BUILD].
# The machine needs CUDA, NCCL and a C compiler for the examples, neither libuv nor inih nor Check:
# BUILD holds programs that were linked statically elsewhere. Prints the figures of RESULTS.md.
# Exit status: 0, or how many of the checks failed; 77 without a GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath "${1:-build}")
cuda=${CUDA_HOME:-/usr/local/cuda}
failed=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }
limited() {
    if [ "$(type -t "$1")" = function ]; then "$@"; else timeout 120 "$@"; fi
}
check() { # NAME COMMAND...
    name=$1; shift
    say "$name"
    if limited "$@"; then echo "ok: $name"; else echo "FAILED ($?): $name"; failed=$((failed + 1)); fi
}

# check() calls the next two by name.
# shellcheck disable=SC2317
# The accuracy that train_gpu ends with is that of train on the CPU, or no more than a point below it.
as_right() {
    cpu=$(timeout 120 "${run[@]}" 1 "$build/examples/train" | sed -n 's/^done.*accuracy \([0-9.]*\),.*/\1/p')
    gpu=$(timeout 120 "$@" | tee >(cat >&2) | sed -n 's/.*GPUs: \([0-9.]*\) % of.*/\1/p')
    echo "train: ${cpu:-nothing}, train_gpu: ${gpu:-nothing} %"
    awk -v cpu="$cpu" -v gpu="$gpu" 'BEGIN { exit !(cpu > 0.95 && gpu > 100 * cpu - 1) }'
}
# The launcher's status is that of the killed rank; what counts is what the other one said.
# shellcheck disable=SC2317
back_soon() {
    rm -f "$work/killed"
    timeout 120 "$@" 2>&1 | tee "$work/said"
    awk '/back [0-9.]+ ms after the kill/ { sub(/.*back /, ""); ok = $1 < 100 } END { exit !ok }' "$work/said"
}
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "SKIPPED: there is no NVIDIA GPU on this machine (nvidia-smi -L)"
    exit 77
fi
say versions
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
[ -x "$cuda/bin/nvcc" ] && "$cuda/bin/nvcc" --version | tail -n 1
export LD_LIBRARY_PATH="$build:$cuda/lib64:${LD_LIBRARY_PATH:-}"
# NCCL and the runtime of a PyTorch that is installed here serve where the loader finds none.
for lib in nccl/lib/libnccl.so.2:DLCOLL_NCCL_LIB cuda_runtime/lib/libcudart.so.12:DLCOLL_CUDART_LIB \
           cu13/lib/libcudart.so.13:DLCOLL_CUDART_LIB; do
    variable=${lib#*:} path=${lib%%:*}
    soname=${path##*/}
    ldconfig -p | grep -q "${soname%.so*}\.so" && continue
    found=$(python3 -c "import nvidia, os; print(next((os.path.join(p, '$path') for p in nvidia.__path__ if os.path.exists(os.path.join(p, '$path'))), ''))" 2>/dev/null)
    [ -n "$found" ] && export "$variable=$found"
done

run=("$build/dlaunch" --nproc_per_node)
perf="$build/dlcoll_perf"

check 'the binding table' "$build/dlaunch" --nproc_per_node gpu --numa_binding node --print_binding true
check 'nccl is there' env DLCOLL_BACKEND=nccl DLCOLL_DEBUG=1 "${run[@]}" 1 "$perf" all_reduce -b 8 -e 8 -n 1 -w 0 --backend nccl
check 'one rank, all operations and types, every element looked at' \
    "${run[@]}" 1 "$perf" all -b 4K -e 1M -f 16 -n 2 -w 1 -d all -o sum,prod,min,max,avg --backend nccl
# Several ranks on the one GPU: NCCL from 2.30 on has a setting, older ones can be told that the ranks
# are on different hosts.
cat > "$work/host_id.sh" <<'S'
#!/bin/sh
export NCCL_HOSTID="rank$RANK"
exec "$@"
S
chmod +x "$work/host_id.sh"
check 'two ranks on one GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)' \
    env NCCL_MULTI_RANK_GPU_ENABLE=1 "${run[@]}" 2 "$perf" all_reduce -b 4K -e 4M -f 16 -n 5 --backend nccl
check 'two ranks on one GPU (NCCL_HOSTID per rank)' \
    "${run[@]}" 2 --no_python "$work/host_id.sh" "$perf" all_reduce -b 4K -e 4M -f 16 -n 5 --backend nccl
check 'figures, one rank' "${run[@]}" 1 "$perf" all_reduce -b 8 -e 256M -f 4 --backend nccl

if [ -x "$cuda/bin/nvcc" ]; then
    say 'programs of this folder'
    "$cuda/bin/nvcc" -O2 -o "$work/train_gpu" examples/train_gpu.cu -Icollectives -L"$build" -ldlcoll &&
        check 'train_gpu, as right as train' as_right "${run[@]}" 1 "$work/train_gpu" examples/data
    "$cuda/bin/nvcc" -O2 -x cu -o "$work/kill" tests/gpu/kill.c -Icollectives -L"$build" -ldlcoll && {
        check 'one of two ranks killed (NCCL_MULTI_RANK_GPU_ENABLE=1)' \
            back_soon env NCCL_MULTI_RANK_GPU_ENABLE=1 "${run[@]}" 2 "$work/kill" "$work/killed"
        check 'one of two ranks killed (NCCL_HOSTID per rank)' \
            back_soon "${run[@]}" 2 --no_python "$work/host_id.sh" "$work/kill" "$work/killed"
    }
    "$cuda/bin/nvcc" -O2 -x cu -o "$work/calls" tests/gpu/calls.c -Icollectives -L"$build" -ldlcoll -l:libnccl.so.2 &&
        check 'dlcoll over bare NCCL, per call' "${run[@]}" 1 "$work/calls"
fi
if command -v gcc >/dev/null && [ -e "$cuda/include/nccl.h" ]; then
    gcc -DUSE_NCCL -o "$work/nccl_allreduce" examples/nccl_allreduce.c -Icollectives -I"$cuda/include" \
        -L"$build" -ldlcoll -L"$cuda/lib64" -lcudart -l:libnccl.so.2 &&
        check "a program's own NCCL" "${run[@]}" 1 "$work/nccl_allreduce"
fi
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    cat > "$work/nccl.py" <<'P'
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda") * (dist.get_rank() + 1)
dist.all_reduce(x)
n = dist.get_world_size()
assert x[0].item() == n * (n + 1) / 2
print("PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version(), "ok")
dist.destroy_process_group()
P
    check 'PyTorch with nccl' "${run[@]}" 1 "$work/nccl.py"
fi
say "$failed failed"
exit "$failed"
