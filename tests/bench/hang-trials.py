#!/usr/bin/env python3
"""Hangs that are planted at random in jobs of two launchers with four workers each: is the right rank named, on both
nodes, and after which time?

    tests/bench/hang-trials.py BUILD [TRIALS]

Prints a line for each kind, and for each trial that went wrong; exit status 1 if one did. SEED=n repeats a run."""
import collections
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

KINDS = ("sleep", "loop", "send", "group", "locks", "stop", "kernel", "pipe", "lock")
NODES, WORKERS, LIMIT_S = 2, 4, 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def trial(build, kind, rank, step_ms):
    """The seconds until both nodes had named the rank; or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, STEP_MS=str(step_ms), XDG_RUNTIME_DIR=folder)
        port, jobs, named = free_port(), [], []
        for node in range(NODES):
            err = open(f"{folder}/err{node}", "w")
            jobs.append(subprocess.Popen(
                [f"{build}/dlaunch", "--nnodes", str(NODES), "--node_rank", str(node), "--master_port", str(port),
                 "--nproc_per_node", str(WORKERS), "--hang_after", "0.5", f"{build}/tests/hang_worker", kind, str(rank),
                 folder], env=env, stdout=subprocess.DEVNULL, stderr=err))
            err.close()
        try:
            end = time.time() + LIMIT_S
            while len(named) < NODES and time.time() < end:
                named = [m for n in range(NODES) if (m := re.search("the job hangs: (.*)\n", open(f"{folder}/err{n}").read()))]
                time.sleep(0.002)
            now = time.time()
            if len(named) < NODES:
                return f"{len(named)} of {NODES} nodes named a rank within {LIMIT_S} s"
            wrong = [m.group(1) for m in named if not m.group(1).startswith(f"rank {rank} on ")]
            return wrong[0] if wrong else now - float(open(f"{folder}/planted").read())
        finally:
            for job in jobs:
                job.send_signal(signal.SIGKILL)
            for job in jobs:
                job.wait()


def main():
    build, trials = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    draw, times, failed = random.Random(seed), collections.defaultdict(list), 0
    print(f"{trials} trials, SEED={seed}", flush=True)
    for i in range(trials):
        kind, rank, step_ms = KINDS[i % len(KINDS)], draw.randrange(NODES * WORKERS), draw.choice((10, 50, 100, 300))
        result = trial(build, kind, rank, step_ms)
        if isinstance(result, str):
            failed += 1
            print(f"trial {i}: {kind} of rank {rank}, steps of {step_ms} ms: {result}", flush=True)
        else:
            times[kind].append(result)
    for kind in sorted(times):
        t = sorted(times[kind])
        print(f"{kind:8} {len(t):5} right; median {t[len(t) // 2]:.2f} s, longest {t[-1]:.2f} s")
    print(f"{trials - failed} of {trials} trials named the right rank on every node")
    return failed > 0


sys.exit(main())
