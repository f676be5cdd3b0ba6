#!/usr/bin/python3
"""Starting: how long a job of N no-op workers takes from the start of the launcher to its exit; dlaunch, its
peers, and the floor (a bare fork, exec, wait loop), interleaved in one run, wall-clock medians. Then: whether
128 workers that exit at once ever hang it, what the launcher occupies, and how long two launchers need to
find each other and start a worker.

    bench-launch.py BUILD_DIR [RUNS]     NS="1 8 32 128"  SLOW_RUNS=5 (torchrun)  LOOPS=200
"""
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from bars import TORCHRUN, bar, bar_fact, find_peers, print_bars  # noqa: E402
from facts import free_port  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
SLOW_RUNS = int(os.environ.get("SLOW_RUNS", "5"))
LOOPS = int(os.environ.get("LOOPS", "200"))
COUNTS = [int(n) for n in os.environ.get("NS", "1 8 32 128").split()]
os.environ["OMP_NUM_THREADS"] = "1"
LIMIT_S = 60
NAP_MS = 300
TRUE = shutil.which("true")
NAP = [f"{BUILD}/tests/bench/nap", str(NAP_MS)]
DLAUNCH = f"{BUILD}/dlaunch"


def launchers():
    """name -> command for n workers of a program"""
    table = {
        "floor": lambda n, prog: [f"{BUILD}/tests/bench/floor", str(n), *prog],
        "dlaunch": lambda n, prog: [DLAUNCH, "--nproc_per_node", str(n), *prog],
        "hydra": lambda n, prog: ["mpiexec.hydra", "-n", str(n), *prog],
        "mpirun": lambda n, prog: ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(n), *prog],
        "torchrun": lambda n, prog: [*TORCHRUN, "--standalone", "--no_python", "--monitor_interval", "0.1",
                                     "--nproc_per_node", str(n), *prog],
    }
    here = ["floor", "dlaunch", *find_peers(["hydra", "mpirun", "torchrun"])]
    return {name: table[name] for name in here}


def run(cmd):
    """Wall-clock ms, or None when it failed or did not end in time."""
    start = time.perf_counter()
    p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = select.poll()  # wait(LIMIT_S) would look only after 0.5, 1.5, 3.5, 7.5, 15.5 ms and so on
    pidfd = os.pidfd_open(p.pid)
    end.register(pidfd, select.POLLIN)
    in_time = end.poll(LIMIT_S * 1000)
    took = (time.perf_counter() - start) * 1e3
    os.close(pidfd)
    if not in_time:
        p.kill()
    return took if p.wait() == 0 else None


def measure_starts():
    table = launchers()
    peers = [name for name in table if name not in ("floor", "dlaunch")]
    print(f"median ms of {RUNS} interleaved runs of N no-op workers ({SLOW_RUNS} of torchrun); x: times the floor\n")
    print("%5s %9s %9s" % ("N", "floor", "limit") + "".join("%19s" % n for n in table if n != "floor"))
    for n in COUNTS:
        walls = {name: [] for name in table}
        bad = {}
        for r in range(RUNS + 1):
            for name, command in table.items():
                if name == "torchrun" and r > SLOW_RUNS:
                    continue
                # Open MPI 4.1.4 hangs when 32 or more workers exit at once: it gets workers that live for a
                # while, which is taken off.
                nap = name == "mpirun" and n >= 32
                wall = run(command(n, NAP if nap else [TRUE]))
                if wall is None:
                    bad[name] = bad.get(name, 0) + 1
                elif r:  # the first one warms up
                    walls[name].append(wall - NAP_MS if nap else wall)
        medians = {name: statistics.median(w) for name, w in walls.items() if w}
        floor, ours = medians["floor"], medians.get("dlaunch", float("inf"))
        limit = 1.2 * floor + 2
        row = "%5d %9.1f %9.1f" % (n, floor, limit)
        for name in table:
            if name != "floor":
                star = "*" if name == "mpirun" and n >= 32 else ""
                row += "%19s" % ("%.1f (%.2fx)%s" % (medians[name], medians[name] / floor, star)
                                 if name in medians else "failed")
        print(row, flush=True)
        print("      least and most: " + ", ".join(f"{name} {min(w):.1f} to {max(w):.1f}"
                                                   for name, w in walls.items() if w))
        for name, count in bad.items():
            print(f"      {name}: {count} runs failed or did not end within {LIMIT_S} s")
        bar(f"start of {n}, 1.2 x floor + 2 ms", ours, limit, " ms")
        beaten = [name for name in peers if medians.get(name, float("inf")) > ours]
        if peers:
            bar_fact(f"start of {n}, faster than every peer", len(beaten) == len(peers),
                     f"faster than {', '.join(beaten) or 'none'}")
    if "mpirun" in table and max(COUNTS) >= 32:
        print(f"\n* with workers that live {NAP_MS} ms, taken off: it hangs on 32 or more that exit at once")


def measure_hangs():
    walls = [run([DLAUNCH, "--nproc_per_node", "128", TRUE]) for _ in range(LOOPS)]
    bad = walls.count(None)
    print(f"\n128 workers that exit at once, {LOOPS} times: {bad} hung or failed; longest "
          f"{max((w for w in walls if w), default=0):.0f} ms")
    bar("128 workers that exit at once hang it", bad, 0, f" of {LOOPS}", 0)


def memory_of(pid):
    sizes = {"Rss": 0, "Pss": 0}
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            key = line.split(":")[0]
            if key in sizes:
                sizes[key] = int(line.split()[1]) / 1024
    return sizes


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(p) for p in f.read().split()]


def measure_memory():
    nap = os.path.realpath(NAP[0])
    p = subprocess.Popen([DLAUNCH, "--nproc_per_node", "8", NAP[0], "60000"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 10
    pids = []
    while len(pids) < 2 and time.monotonic() < end:
        agent = children(p.pid)
        workers = children(agent[0]) if agent else []
        if len(workers) == 8 and all(os.readlink(f"/proc/{w}/exe") == nap for w in workers):
            pids = [p.pid, agent[0]]
        time.sleep(0.005)
    sizes = [memory_of(pid) for pid in pids]
    p.terminate()
    p.wait()
    print("\nmemory with 8 workers, MiB:   RSS    PSS")
    for name, size in zip(("guardian", "agent"), sizes):
        print("%-26s %6.1f %6.1f" % (name, size["Rss"], size["Pss"]))
    bar("launcher's memory, both processes' RSS", sum(s["Rss"] for s in sizes) if sizes else float("inf"), 8, " MiB")


def first_instruction(path, head_first):
    """ms from the start of the last of two launchers to the first line of main() of the first worker, and to
    that of the last one."""
    port = free_port()
    if os.path.exists(path):
        os.unlink(path)

    def start(rank):
        return subprocess.Popen([DLAUNCH, "--nnodes", "2", "--node_rank", str(rank), "--master_port", str(port),
                                 "--nproc_per_node", "2", f"{BUILD}/tests/bench/stamp", path],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = start(0 if head_first else 1)
    time.sleep(0.3)  # it is waiting
    begin = time.monotonic_ns()
    last = start(1 if head_first else 0)
    if first.wait(LIMIT_S) or last.wait(LIMIT_S):
        return None
    with open(path) as f:
        stamps = sorted(int(line.split()[3]) for line in f)
    return (stamps[0] - begin) * 1e-6, (stamps[-1] - begin) * 1e-6


def measure_first_instruction():
    print("\ntwo launchers on loopback, 2 workers each; ms from the start of the last launcher\n"
          "%-34s %13s %13s" % ("", "first worker", "last worker"))
    with tempfile.TemporaryDirectory() as tmp:
        both = {True: [], False: []}
        for _ in range(RUNS):
            for head_first, times in both.items():
                times.append(first_instruction(f"{tmp}/stamps", head_first))
    for head_first, times in both.items():
        times = [t for t in times if t] or [(float("inf"), float("inf"))]
        first, last = (statistics.median(t[i] for t in times) for i in (0, 1))
        name = "the coordinator's came first" if head_first else "the coordinator's came last"
        print("%-34s %13.1f %13.1f" % (name, first, last))
        bar(f"last launcher to first instruction of a worker, {name}", first, 15, " ms")


measure_starts()
measure_hangs()
measure_memory()
measure_first_instruction()
sys.exit(print_bars())
