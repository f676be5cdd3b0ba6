#!/usr/bin/env python3
"""Hangs that are planted at random in jobs of two launchers with four workers each: is the right rank named, on both
nodes, and after which time?

    tests/trials/hang_trials.py BUILD [TRIALS [PYTHON]]

PYTHON has PyTorch: its programs with gloo, of which each job does many trials, by --on_hang restart; else programs with
libdlcoll, a job for each trial. Prints a line for each kind, and for each trial that went wrong; exit status 1 if one
did; Ctrl-C ends it early. SEED=n repeats a run. STEPS=n: so many steps before a hang in a program with libdlcoll are twice n."""
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

KINDS = ("sleep", "loop", "send", "group", "locks", "stop", "kernel", "pipe", "lock", "skip", "node")
TORCH_KINDS = ("sleep", "loop", "recv", "group", "locks", "lock", "stop", "kernel", "pipe", "file", "skip", "interpreter")
NODES, WORKERS, LIMIT_S, START_S = 2, 4, 120, 600
TORCH_SCRIPT = os.path.join(os.path.dirname(__file__), "../torch/scripts/hang.py")


class Wrong(Exception):
    pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """Two launchers on this host."""

    def __init__(self, build, folder, arguments, **env):
        self.folder, self.jobs, port = folder, [], free_port()
        for node in range(NODES):
            with open(f"{folder}/err{node}", "w") as err:
                self.jobs.append(subprocess.Popen(
                    [f"{build}/dlaunch", "--nnodes", str(NODES), "--node_rank", str(node), "--master_port", str(port),
                     "--nproc_per_node", str(WORKERS), "--hang_after", "0.5", *arguments],
                    env={**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder, **env},
                    stdout=subprocess.DEVNULL, stderr=err))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for job in self.jobs:
            job.send_signal(signal.SIGKILL)
        for job in self.jobs:
            job.wait()

    def lines(self, pattern):
        """What matches on each node, in order."""
        found = []
        for node in range(NODES):
            with open(f"{self.folder}/err{node}") as f:
                found.append(re.findall(pattern, f.read()))
        return found

    def await_lines(self, pattern, number, limit, nodes=range(NODES)):
        """The line of that number on each of these nodes, and when it was there."""
        end = time.time() + limit
        while time.time() < end:
            found = [self.lines(pattern)[node] for node in nodes]
            if all(len(f) > number for f in found):
                return [f[number] for f in found], time.time()
            time.sleep(0.002)
        raise Wrong(f"{[len(f) for f in found]} lines on the nodes within {limit} s, {number + 1} wanted")


def planted(path):
    with open(path) as f:
        return float(f.read())


def check_rank(named, rank):
    for text in named:
        if not text.startswith(f"rank {rank} on "):
            raise Wrong(text)


def check_node(job, rank):
    """The node of the rank is stopped: the other one says so. When that was."""
    cut = rank // WORKERS
    [line], now = job.await_lines(r"the job hangs: (.*) \(dlaunchctl stacks ", 0, LIMIT_S, [1 - cut])
    first = cut * WORKERS
    wanted = f"ranks {first}-{first + WORKERS - 1}; the first of them, rank {first} on " if cut else "the node of the coordinator"
    if not line.startswith(wanted) or " does not answer" not in line:
        raise Wrong(line)
    return now


def trial(build, kind, rank, step_ms):
    """The seconds until both nodes had named the rank. Of an operation that was left out libdlcoll itself tells."""
    with tempfile.TemporaryDirectory() as folder, \
            Job(build, folder, [f"{build}/tests/hang_worker", kind, str(rank), folder], STEP_MS=str(step_ms)) as job:
        if kind == "skip":
            named, now = job.await_lines(r"rank (\d+) \(\S+\): barrier \(this rank is the odd one out\)", 0, LIMIT_S)
            check_rank([f"rank {n} on " for n in named], rank)
        elif kind == "node":
            now = check_node(job, rank)
        else:
            named, now = job.await_lines(r"the job hangs: (.*) \(dlaunchctl stacks ", 0, LIMIT_S)
            check_rank(named, rank)
        return now - planted(f"{folder}/planted")


def torch_trials(build, python, plan):
    """The same for each trial of the plan, as it ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/plan"
        with open(path, "w") as f:
            f.write("".join(f"{kind} {rank} {ms}\n" for kind, rank, ms in plan))
        arguments = ["--on_hang", "restart", "--max_restarts", str(len(plan)), "--progress_time", "0",
                     "--shutdown_timeout", "1", TORCH_SCRIPT, path]
        with Job(build, folder, arguments, PYTHON_EXEC=python, TMPDIR=folder) as job:
            for number, (kind, rank, ms) in enumerate(plan):
                try:
                    named, now = job.await_lines(r"the job hangs: (.*) \(dlaunchctl stacks ", number, START_S)
                    check_rank(named, rank)
                    yield now - planted(f"{path}.{number}")
                except Wrong as wrong:
                    yield str(wrong)


def trials_of(build, python, plan):
    if python:
        yield from torch_trials(build, python, plan)
        return
    for kind, rank, ms in plan:
        try:
            yield trial(build, kind, rank, ms)
        except Wrong as wrong:
            yield str(wrong)


def main():
    build, trials = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
    python = sys.argv[3] if len(sys.argv) > 3 else None
    kinds = os.environ["KINDS"].split() if "KINDS" in os.environ else TORCH_KINDS if python else KINDS
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    draw, times, failed = random.Random(seed), collections.defaultdict(list), 0
    plan = [(kinds[i % len(kinds)], draw.randrange(NODES * WORKERS), draw.choice((10, 50, 100, 300))) for i in range(trials)]
    print(f"{trials} trials, SEED={seed}", flush=True)
    try:
        for (kind, rank, ms), result in zip(plan, trials_of(build, python, plan)):
            if isinstance(result, str):
                failed += 1
                print(f"{kind} of rank {rank}, steps of {ms} ms: {result}", flush=True)
            else:
                times[kind].append(result)
    except KeyboardInterrupt:
        pass
    for kind in sorted(times):
        t = sorted(times[kind])
        print(f"{kind:11} {len(t):5} right; median {t[len(t) // 2]:.2f} s, longest {t[-1]:.2f} s")
    right = sum(map(len, times.values()))
    print(f"{right} of {right + failed} trials named the right rank on every node")
    return failed > 0


sys.exit(main())
