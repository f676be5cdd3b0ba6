#!/usr/bin/python3
"""MPI programs under dlaunch and under the starters of their own MPI, in one interleaved run: hello from start to exit, and
the time from the death of a rank until every other rank has ended, beside what the kernel needs to end one such process.

    bench-mpi.py BUILD [RANKS [RUNS]]
"""
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../mpi"))
from death import kill_a_rank  # noqa: E402

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


def death(command, n):
    job = subprocess.Popen(command + ["wait"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENV)
    took = kill_a_rank([job], n, LIMIT_S)
    job.communicate(timeout=LIMIT_S)
    return took


def table(title, measure, n, runs, starters=STARTERS):
    times = {name: [] for name in starters}
    for _ in range(runs):
        for name, command in starters.items():
            times[name].append(measure(command(n), n) * 1000)
    print(f"\n{title}, {runs} interleaved runs, ms\n")
    print(f"{'':24}{'median':>10}{'best':>10}{'worst':>10}")
    for name, t in times.items():
        print(f"{name:24}{statistics.median(t):10.1f}{min(t):10.1f}{max(t):10.1f}", flush=True)


table(f"hello of {RANKS} ranks on one node, start to exit", hello, RANKS, RUNS)
table("hello of 2 ranks, start to exit", hello, 2, 4 * RUNS)
table("a rank of 2 is killed: the other one has ended after", death, 2, 4 * RUNS)
table("a process without a starter is killed: it has ended after", death, 1, 4 * RUNS,
      {name: lambda n, mpi=mpi: [f"{BUILD}/tests/mpi/{mpi}"] for name, mpi in (("MPICH", "mpich"), ("Open MPI", "openmpi"))})
