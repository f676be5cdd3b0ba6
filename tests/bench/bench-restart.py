#!/usr/bin/python3
"""Restarting: from kill -9 of one worker to the first line of main() of its successors, on every node; dlaunch
and torchrun (with its newer versions' monitor interval of 0.1 s), one launcher with 4 workers and two with 2
each, interleaved, medians. The workers do nothing about SIGTERM, so that it ends them at once.

    bench-restart.py BUILD_DIR [RUNS]     SLOW_RUNS=5 (torchrun)
"""
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from bars import TORCHRUN, bar, find_peers, print_bars  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 21
SLOW_RUNS = int(os.environ.get("SLOW_RUNS", "5"))
LIMIT_S = 60
WORKERS = 4
VICTIM = 1
os.environ["OMP_NUM_THREADS"] = "1"


def commands(name, nnodes, worker):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    common = ["--nproc_per_node", str(WORKERS // nnodes), "--max_restarts", "1"]
    if name == "dlaunch":
        return [[f"{BUILD}/dlaunch", "--nnodes", str(nnodes), "--node_rank", str(i), "--master_port", port, *common,
                 *worker] for i in range(nnodes)]
    rdzv = (["--standalone"] if nnodes == 1 else
            ["--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", port])
    return [[*TORCHRUN, "--no_python", "--monitor_interval", "0.1", *rdzv, *common, *worker] for _ in range(nnodes)]


def stamps(path):
    """Lines of (rank, node, pid, ns)."""
    try:
        with open(path) as f:
            return [line.split() for line in f]
    except FileNotFoundError:
        return []


def restart(name, nnodes, tmp):
    """ms from the kill to the first successor on the node that has its first one last, and to the last of all
    successors; None when it did not work out."""
    path, second = f"{tmp}/stamps", f"{tmp}/second"
    for old in (path, second):
        if os.path.exists(old):
            os.unlink(old)
    launchers = [subprocess.Popen(c, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                 for c in commands(name, nnodes, [f"{BUILD}/tests/bench/stamp", path, second])]
    end = time.monotonic() + LIMIT_S
    while len(stamps(path)) < WORKERS and time.monotonic() < end:
        time.sleep(0.005)
    victims = [int(s[2]) for s in stamps(path) if s[0] == str(VICTIM)]
    if not victims:
        for p in launchers:
            p.kill()
        return None
    time.sleep(0.2)
    open(second, "w").close()
    killed = time.monotonic_ns()
    os.kill(victims[0], signal.SIGKILL)
    for p in launchers:
        try:
            p.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            p.kill()
    new = stamps(path)[WORKERS:]
    if len(new) < WORKERS:
        return None
    nodes = {}
    for _, node, _, ns in new:
        nodes.setdefault(node, []).append((int(ns) - killed) * 1e-6)
    return max(min(t) for t in nodes.values()), max(max(t) for t in nodes.values())


def main():
    names = ["dlaunch", *find_peers(["torchrun"])]
    print(f"ms from kill -9 of a worker to its successors, median [least..most] of {RUNS} interleaved runs "
          f"({SLOW_RUNS} of torchrun)\n")
    print("%-22s %-10s %28s %28s" % ("", "", "first one on every node", "last one of all"))
    medians = {}
    with tempfile.TemporaryDirectory() as tmp:
        for nnodes in (1, 2):
            times = {name: [] for name in names}
            for r in range(RUNS + 1):
                for name in names:
                    if name != "dlaunch" and r > SLOW_RUNS:
                        continue
                    t = restart(name, nnodes, tmp)
                    if r and t:
                        times[name].append(t)
            for name, all_times in times.items():
                row = "%-22s %-10s" % (f"{nnodes} launcher{'s' if nnodes > 1 else ''}, {WORKERS} workers", name)
                for i in (0, 1):
                    v = [t[i] for t in all_times] or [float("inf")]
                    row += "%28s" % ("%.1f [%.1f..%.1f]" % (statistics.median(v), min(v), max(v)))
                    medians[name, nnodes, i] = statistics.median(v)
                print(row + ("" if len(all_times) >= min(RUNS, SLOW_RUNS) else f"   ({len(all_times)} runs worked)"),
                      flush=True)
    bar("killed worker to first instruction of its successor on every node, 2 launchers",
        medians["dlaunch", 2, 0], 20, " ms")
    if "torchrun" in names:
        for nnodes in (1, 2):
            print("%d launcher%s: dlaunch is %.0f times as quick as torchrun" % (
                nnodes, "s" if nnodes > 1 else "", medians["torchrun", nnodes, 1] / medians["dlaunch", nnodes, 1]))
    sys.exit(print_bars())


main()
