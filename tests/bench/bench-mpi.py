#!/usr/bin/python3
"""MPI programs under dlaunch and under the starters of their own MPI, in one interleaved run: hello from start to exit, and
the time from the death of a rank until every other rank has ended.

    bench-mpi.py BUILD [RANKS [RUNS]]
"""
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BUILD = sys.argv[1]
RANKS = int(sys.argv[2]) if len(sys.argv) > 2 else 128
RUNS = int(sys.argv[3]) if len(sys.argv) > 3 else 5
LIMIT_S = 300
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

STARTERS = {
    "dlaunch, MPICH": lambda n: [f"{BUILD}/dlaunch", "--nproc_per_node", str(n), f"{BUILD}/tests/mpi/mpich"],
    "mpiexec.hydra, MPICH": lambda n: ["mpiexec.hydra", "-n", str(n), f"{BUILD}/tests/mpi/mpich"],
    "dlaunch, Open MPI": lambda n: [f"{BUILD}/dlaunch", "--nproc_per_node", str(n), f"{BUILD}/tests/mpi/openmpi"],
    "mpirun, Open MPI": lambda n: ["mpirun.openmpi", "--oversubscribe", "-n", str(n), f"{BUILD}/tests/mpi/openmpi"],
}


def hello(command, n):
    begin = time.monotonic()
    out = subprocess.run(command + ["hello"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env=ENV,
                         timeout=LIMIT_S, text=True).stdout
    took = time.monotonic() - begin
    assert out.count(f" of {n}, ") == n, out
    return took


def ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def death(command, n):
    with tempfile.TemporaryDirectory() as d:
        job = subprocess.Popen(command + ["wait", d + "/pid"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
        end = time.monotonic() + LIMIT_S
        pids = []
        while len(pids) < n:
            assert time.monotonic() < end, "the ranks did not begin"
            files = [f"{d}/pid.{i}" for i in range(n)]
            if all(os.path.exists(f) and os.path.getsize(f) for f in files):
                pids = [int(open(f).read()) for f in files]
            time.sleep(0.01)
        begin = time.monotonic()
        os.kill(pids[-1], signal.SIGKILL)
        while not all(map(ended, pids)):
            assert time.monotonic() < begin + LIMIT_S, "ranks are left"
        took = time.monotonic() - begin
        job.wait(LIMIT_S)
        return took


def table(title, measure, n, runs):
    times = {name: [] for name in STARTERS}
    for _ in range(runs):
        for name, command in STARTERS.items():
            times[name].append(measure(command(n), n) * 1000)
    print(f"\n{title}, {runs} interleaved runs, ms\n")
    print(f"{'':24}{'median':>10}{'best':>10}{'worst':>10}")
    for name, t in times.items():
        print(f"{name:24}{statistics.median(t):10.1f}{min(t):10.1f}{max(t):10.1f}", flush=True)


table(f"hello of {RANKS} ranks on one node, start to exit", hello, RANKS, RUNS)
table("hello of 2 ranks, start to exit", hello, 2, 4 * RUNS)
table("a rank of 2 is killed: the other one has ended after", death, 2, 4 * RUNS)
