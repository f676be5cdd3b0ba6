#!/usr/bin/env python3
"""torch.distributed with the backend dlcoll beside gloo: all_reduce, and steps of DistributedDataParallel.

    bench-torch.py BUILD

With the PyTorch of this interpreter. Both backends have a group in the same processes and are measured in turns, so
that both see the same load of the machine; the figures are medians over the turns, on rank 0. Jobs: 2 and 4 ranks of
one launcher; two launchers, between which there is TCP only; 2 ranks beside as many busy processes as there are CPUs,
and beside twice as many. At last the parts of a call's time.
Exits with 1 when a bar is missed. QUICK=1: fewer turns. JOBS=NAME,... selects jobs.
"""
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
QUICK = os.environ.get("QUICK") == "1"
BACKENDS = ("gloo", "dlcoll")
SIZES = (8, 64 << 10, 1 << 20, 64 << 20)
MODELS = {"MLP of 50,000 parameters": (784, 64, 10), "MLP of 2 M parameters": (784, 1088, 1024, 10)}
BATCH = 32
CPUS = len(os.sched_getaffinity(0))


# ------------------------------------------------------------------------------------------ a rank

def all_reduce(bytes_, group):
    import torch
    import torch.distributed as dist

    x = torch.zeros(bytes_ // 4)
    return lambda: dist.all_reduce(x, group=group)


def ddp_step(widths, group):
    """One step on one batch: forward, backward with all_reduce of the gradients, SGD."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    layers = []
    for n, m in zip(widths, widths[1:]):
        layers += [nn.Linear(n, m), nn.ReLU()]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers[:-1]), process_group=group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y, loss = torch.randn(BATCH, widths[0]), torch.randint(0, widths[-1], (BATCH,)), nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()

    return step


def rank(job):
    import torch
    import torch.distributed as dist

    import dlcoll.torch

    if job["pinned"]:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["RANK"])]})
    torch.set_num_threads(1)
    if job["backends"] == ["fake"]:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("dlcoll")
    groups = {backend: dist.new_group(backend="gloo") if backend == "gloo" else dist.group.WORLD
              for backend in job["backends"]}
    rows = [(size_text(n), lambda group, n=n: all_reduce(n, group)) for n in job["sizes"]]
    rows += [(name, lambda group, name=name: ddp_step(MODELS[name], group)) for name in job["models"]]
    for label, make in rows:
        run = {backend: make(groups[backend]) for backend in job["backends"]}
        repeats = {backend: calibrate(run[backend], job["turn_s"]) for backend in run}
        took = {backend: [] for backend in run}
        for _ in range(job["turns"]):
            for backend in run:
                dist.barrier()
                start = time.perf_counter()
                for _ in range(repeats[backend]):
                    run[backend]()
                took[backend].append((time.perf_counter() - start) / repeats[backend])
        if dist.get_rank() == 0:
            seconds = {backend: statistics.median(t) for backend, t in took.items()}
            print(json.dumps([label, seconds]), flush=True)
    dist.destroy_process_group()


def calibrate(run, turn_s):
    """How many calls take about turn_s: the same on every rank."""
    import torch
    import torch.distributed as dist

    n, took = 1, 0
    while True:
        start = time.perf_counter()
        for _ in range(n):
            run()
        took = torch.tensor([time.perf_counter() - start])
        dist.broadcast(took, 0)
        if took.item() > turn_s / 4:
            return max(1, round(n * turn_s / took.item()))
        n *= 4


def size_text(n):
    return f"all_reduce of {n} B" if n < 1024 else f"all_reduce of {n >> 10} KB" if n < 1 << 20 else \
        f"all_reduce of {n >> 20} MB"


# ---------------------------------------------------------------------------------------- the jobs

def bars_of(sizes, models=()):
    return {**dict(zip(map(size_text, SIZES), sizes)), **dict(zip(MODELS, models))}


# Name -> ranks, launchers, busy processes for each CPU, how many times as fast as gloo. 4 ranks on fewer CPUs share
# them, so that the time of a step is its arithmetic.
JOBS = {
    "node2": ("2 ranks in a node", 2, 1, 0, bars_of((40, 50, 20, 5), (4, 1.7))),
    "node4": ("4 ranks in a node", 4, 1, 0, bars_of((40, 50, 20, 5))),
    "tcp": ("2 ranks, two launchers, TCP", 2, 2, 0, bars_of((25, 40, 6, 2))),
    "busy1": ("2 ranks, a busy process for each CPU", 2, 1, 1, bars_of((1, 1, 1, 1), (1, 1))),
    "busy2": ("2 ranks, two busy processes for each CPU", 2, 1, 2, bars_of((1, 1, 1, 1), (1, 1))),
}
CALL_BAR_US = 5


def run_job(ranks, launchers, **job):
    """The lines of rank 0."""
    from jobs import BACKEND_ENV, PYTHON, Job, dlaunch, nodes

    env = {**BACKEND_ENV, "BENCH_JOB": json.dumps(job)}
    program = ("--nproc_per_node", ranks // launchers, PYTHON, __file__, "rank")
    started = nodes(launchers, *program, env=env) if launchers > 1 else [dlaunch(*program, env=env)]
    try:
        return [json.loads(line) for j in started for line in j.wait().splitlines()]
    finally:
        Job.end_all()


def busy(n):
    """Each in a session of its own, as other jobs are: the kernel divides the CPUs among sessions."""
    return [subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True) for _ in range(n)]


def text_of(seconds):
    return f"{seconds * 1e6:10.1f} us" if seconds < 0.01 else f"{seconds * 1e3:10.1f} ms"


def compare(name):
    from bars import bar_fact

    title, ranks, launchers, per_cpu, bars = JOBS[name]
    load = busy(per_cpu * CPUS)
    print(f"\n{title} (load {os.getloadavg()[0]:.1f})\n{'':28}{'gloo':>13}{'dlcoll':>13}{'times as fast':>16}")
    try:
        # Beside busy processes a turn must be long compared with the scheduler's slices.
        rows = run_job(ranks, launchers, pinned=not load and ranks <= CPUS, sizes=SIZES, models=[m for m in MODELS if m in bars], backends=BACKENDS,
                       turns=3 if QUICK else 9, turn_s=(0.5 if load else 0.1) / (2 if QUICK else 1))
    finally:
        for p in load:
            p.kill()
            p.wait()
    for label, took in rows:
        ratio = took["gloo"] / took["dlcoll"]
        print(f"{label:28}{text_of(took['gloo'])}{text_of(took['dlcoll'])}{ratio:16.1f}", flush=True)
        bar_fact(f"{title}: {label}", ratio >= bars[label], f"{ratio:.1f} times as fast as gloo, at least {bars[label]}")


def overhead():
    """all_reduce of 8 bytes through torch.distributed, beside its parts: libdlcoll's C interface alone, and
    torch.distributed with PyTorch's backend "fake", which does nothing."""
    from bars import bar
    from jobs import BUILD, Job, dlaunch

    bind = ("--bind", "core") if CPUS > 1 else ()
    try:
        out = dlaunch(*bind, "--nproc_per_node", 2, BUILD + "/dlcoll_perf", "all_reduce", "-b", 8, "-e", 8, "-p", "in",
                      "--json").wait()
        bare = 1e-6 * json.loads(out)["results"][0]["mean_us"]
    finally:
        Job.end_all()

    def measure(backend, ranks):
        (_, took), = run_job(ranks, 1, sizes=[8], models=[], backends=[backend], turns=3 if QUICK else 15,
                             turn_s=0.1, pinned=ranks <= CPUS)
        return took[backend]

    fake, whole = measure("fake", 1), measure("dlcoll", 2)
    more = 1e6 * (whole - bare - fake)
    print(f"\nall_reduce of 8 B, 2 ranks in a node (load {os.getloadavg()[0]:.1f})")
    print(f"{'libdlcoll alone':28}{text_of(bare)}\n{'torch.distributed alone':28}{text_of(fake)}")
    print(f"{'both':28}{text_of(whole)}, the backend itself {more:.1f} us")
    bar("the backend's own part of a call", more, CALL_BAR_US, " us")


def main():
    os.environ["BUILD"] = sys.argv[1] if len(sys.argv) > 1 else "build"
    sys.path.insert(0, os.path.join(HERE, "../torch"))
    from bars import print_bars
    from jobs import PYTHON, Skip, build_backend, torch_version

    version = torch_version()
    if version is None or version < (2, 9):
        print(f"SKIPPED: {PYTHON} has no PyTorch 2.9 or later")
        sys.exit(0)
    try:
        build_backend()
    except Skip as why:
        print(f"SKIPPED: the C++ extension: {why}")
    print("PyTorch %d.%d, %d CPUs; medians" % (*version, CPUS))
    wanted = os.environ.get("JOBS", ",".join([*JOBS, "calls"])).split(",")
    for name in wanted:
        overhead() if name == "calls" else compare(name)
    sys.exit(print_bars())


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        rank(json.loads(os.environ["BENCH_JOB"]))
    else:
        main()
