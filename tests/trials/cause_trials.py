#!/usr/bin/env python3
"""Planted causes in jobs of three launchers: is the right class, rank and word on every node, and when.

    tests/trials/cause_trials.py [--trials N] [--build DIR] [--seed N] [NAME ...]

Each trial takes one of the causes, in a random order, and a rank. It reads the events on all three nodes with
`dlaunchctl events -f` while they happen. Prints for each class how often cause, rank and text were right on all
nodes, the time from the planted fault to the coordinator's decision, and for all trials how late an event was
read, and whether every node had the same sequence of names. NAME: only causes whose name contains it.
Exit status 1 if one was wrong, or a bar is missed.
"""
import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from facts import free_port  # noqa: E402

NODES = 3
DECIDED_MS = 10  # the median
READ_MS = 50     # the median of the events of a trial; a busy machine delays some

EARLY = """
import os, sys, time
import numpy, dlcoll
rank, victim, folder = int(os.environ["RANK"]), int(sys.argv[1]), sys.argv[2]
c = dlcoll.Comm()
c.all_reduce(numpy.ones(4, dtype=numpy.float32))
with open(folder + "/up", "a") as f:
    f.write("up\\n")
while not os.path.exists(folder + "/go"):
    time.sleep(0.001)
if rank == victim:
    with open(folder + "/planted", "w") as f:
        f.write("0 0 0 0 %d\\n" % time.monotonic_ns())
    if sys.argv[3] == "leave":
        os._exit(0)
c.all_reduce(numpy.ones(7 if rank == victim else 4, dtype=numpy.float32))
"""


def causes():
    """name -> class, words that the text must have, what the rank does, or what is done to it."""
    table = {}
    for code in [1, 2, 3, 5, 7, 13, 42, 64, 70, 77, 99, 100, 113, 120, 124, 139, 200, 255]:
        table[f"exit-{code}"] = ("exit", f"exited with code {code}", ["exit", str(code)], None)
    for name in ["SEGV", "BUS", "ABRT", "ILL", "FPE", "TRAP", "SYS", "PIPE", "XCPU", "XFSZ"]:
        number = getattr(signal, "SIG" + name)
        table[f"crash-{name}"] = ("crash", f"SIG{name}", ["raise", str(int(number))], None)
    for name in ["KILL", "TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "POLL", "PWR", "STKFLT"]:
        number = int(getattr(signal, "SIG" + name, 16))
        table[f"killed-{name}"] = ("killed", f"SIG{name}", ["pause"], ("worker", number))
    for i in range(2):
        table[f"launcher-killed-{i}"] = ("node-lost", "", ["pause"], ("lost", signal.SIGKILL))
    for i in range(3):
        table[f"request-{i}"] = ("request", "dlaunchctl stop", ["pause"], ("stop", None))
        table[f"timeout-{i}"] = ("timeout", "--timeout", ["pause"], ("timeout", None))
    for name in ["TERM", "INT", "QUIT"]:
        for i in range(2):
            table[f"signal-{name}-{i}"] = ("signal", f"SIG{name}", ["pause"],
                                           ("launcher", getattr(signal, "SIG" + name)))
    for i in range(3):
        table[f"early-exit-{i}"] = ("early-exit", "exited with code 0 while other workers needed it", "leave", None)
    for i in range(2):
        table[f"mismatch-{i}"] = ("mismatch", "operation did not match", "differ", None)
    return table


class Reader(threading.Thread):
    """Reads the events of a node as they come."""

    def __init__(self, command, env):
        super().__init__(daemon=True)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True)
        self.events, self.late = [], []
        self.start()

    def run(self):
        for line in self.process.stdout:
            now, e = time.monotonic(), json.loads(line)
            self.events.append(e)
            self.late.append(now - e["context"]["mono_s"])


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.002)


def lines_of(path):
    try:
        with open(path) as f:
            return f.read().splitlines()
    except OSError:
        return []


def end_by(how, number, launchers, rank, folder, ctl, env):
    """Plants what comes from outside. Returns the time."""
    if how == "worker":
        pid = next(int(x.split()[3]) for x in lines_of(folder + "/up") if x.split()[0] == str(rank))
        planted = time.monotonic()
        os.kill(pid, number)
    elif how == "stop":
        planted = time.monotonic()
        subprocess.run([ctl, "-p", str(launchers[rank].pid), "stop"], env=env, check=True, stdout=subprocess.DEVNULL)
    else:
        planted = time.monotonic()
        launchers[rank].send_signal(number)
    return planted


def judge(events, cause, words, rank):
    """What is wrong with what a node was told; None: nothing. A worker that has exited with 0 turns out to be the
    cause when others fail for want of it; so the last word counts."""
    failures = [e["context"] for e in events if e["name"] == "failure"]
    told = next((e["context"] for e in events[::-1] if e["name"] in ("stop", "finish")), {})
    mine = [f for f in failures if f.get("cause") == cause]
    if told.get("cause") != cause:
        return f"the cause is {told.get('cause')}: {told.get('text')}"
    if cause == "node-lost" and not any(f.get("node") == rank for f in mine):
        return f"node {[f.get('node') for f in mine]}"
    if cause in ("exit", "crash", "killed", "early-exit") and not any(f.get("rank") == rank for f in mine):
        return f"rank {[f.get('rank') for f in mine]}"
    if words not in json.dumps(told):
        return f"the text is {told.get('text')}"
    return None


def trial(args, name, row, rank):
    """(what is wrong or None, seconds until the decision, seconds until each event was read)"""
    cause, words, does, outside = row
    folder = tempfile.mkdtemp(prefix="cause-")
    env = dict(os.environ, XDG_RUNTIME_DIR=folder, XDG_STATE_HOME=folder,
               PYTHONPATH=f"{args.source}/collectives/python", DLCOLL_LIBRARY=f"{args.build}/libdlcoll.so.0")
    how, number = outside or (None, None)
    if how == "lost":
        rank = max(rank, 1)  # the loss of the coordinator's node is another matter
    worker, ctl, port = f"{args.build}/tests/worker", f"{args.build}/dlaunchctl", str(free_port())
    launchers, readers = [], []
    try:
        for node in range(NODES):
            command = [f"{args.build}/dlaunch", "--nnodes", str(NODES), "--node_rank", str(node), "--master_port", port,
                       "--nproc_per_node", "1", "--shutdown_timeout", "5", "--no_python"]
            if how == "timeout" and node == rank:
                command += ["--timeout", "3"]
            if isinstance(does, str):
                with open(folder + "/early.py", "w") as f:
                    f.write(EARLY)
                command += ["/usr/bin/python3", folder + "/early.py", str(rank), folder, does]
            else:
                command += [worker, "append", folder + "/up"]
                if not outside:
                    command += ["wait", folder + "/go", "if-rank", str(rank), "append", folder + "/planted"]
                    command += ["if-rank", str(rank)] + does
                command += ["pause"]
            launchers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env))
        wait_for("workers", lambda: len(lines_of(folder + "/up")) == NODES)
        wait_for("sockets", lambda: sum(x.endswith(".sock") for _, _, fs in os.walk(folder) for x in fs) == NODES)
        readers = [Reader([ctl, "-o", "json", "-p", str(x.pid), "events", "-f"], env) for x in launchers]
        wait_for("events", lambda: all(sum(e["name"] == "worker.start" for e in r.events) == NODES for r in readers))
        before = [len(r.events) for r in readers]
        if how == "timeout":
            planted = None
        elif outside:
            planted = end_by(how, number, launchers, rank, folder, ctl, env)
        else:
            open(folder + "/go", "w").close()
            wait_for("the fault", lambda: lines_of(folder + "/planted"))
            planted = int(lines_of(folder + "/planted")[0].split()[4]) / 1e9
        for x in launchers:
            x.communicate(timeout=60)
        for r in readers:
            r.join(20)
        lost = how == "lost"
        told = [r for i, r in enumerate(readers) if not (lost and i == rank)]
        wrong = next(filter(None, (judge(r.events, cause, words, rank) for r in told)), None)
        names = [[e["name"] for e in r.events] for r in told]
        shortest = min(len(x) for x in names)
        if not wrong and any(x[:shortest] != names[0][:shortest] for x in names):
            wrong = "the nodes have different sequences of events"
        decided = [e["context"]["mono_s"] for e in told[0].events if e["name"] in ("stop", "restart", "finish")]
        if isinstance(does, str):
            planted = None  # until the others fail, their Python ends
        late = [s for r, n in zip(readers, before) for s in r.late[n:]]
        return wrong, decided[0] - planted if planted and decided else None, late
    except (TimeoutError, subprocess.TimeoutExpired, subprocess.CalledProcessError) as e:
        return f"{type(e).__name__}: {e}", None, []
    finally:
        for x in launchers + [r.process for r in readers]:
            if x.poll() is None:
                x.kill()
                x.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--build", default="build")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    args.source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    seed = random.randrange(1 << 30) if args.seed is None else args.seed
    random.seed(seed)
    table = {k: v for k, v in causes().items() if not args.names or any(n in k for n in args.names)}
    if not table:
        sys.exit(f"cause_trials.py: no cause has a name with {' or '.join(args.names)}; all: {' '.join(causes())}")
    print(f"{len(table)} causes, {args.trials} trials, seed {seed}, load {os.getloadavg()[0]:.0f}", flush=True)
    right, tried, decided, late, with_stacks, names = {}, {}, {}, [], [], list(table)
    for i in range(args.trials):
        if i % len(names) == 0:
            random.shuffle(names)
        name, rank = names[i % len(names)], random.randrange(NODES)
        cause = table[name][0]
        wrong, took, delays = trial(args, name, table[name], rank)
        tried[cause] = tried.get(cause, 0) + 1
        right[cause] = right.get(cause, 0) + (wrong is None)
        late += delays
        if took is not None:
            decided.setdefault(cause, []).append(took * 1e3)
            with_stacks += [took * 1e3] if name.startswith("signal-QUIT") else []
        if wrong:
            print(f"{name}, rank {rank}: {wrong}", flush=True)
    for cause, n in tried.items():
        t = decided.get(cause)
        shown = f"decided after {statistics.median(t):.1f} ms, at most {max(t):.1f}" if t else ""
        print(f"{cause:12} right {right[cause]} of {n}  {shown}")
    if with_stacks:
        print(f"of which SIGQUIT, for which the stacks of all workers are taken first: after "
              f"{statistics.median(with_stacks):.1f} ms, at most {max(with_stacks):.1f}")
    t = sorted(x for v in decided.values() for x in v)
    good = sum(right.values()) == args.trials
    if t:
        quick = statistics.median(t) < DECIDED_MS
        good &= quick
        print(f"bar: decided after {statistics.median(t):.1f} ms, 99 % within {t[int(0.99 * (len(t) - 1))]:.1f} ms, "
              f"less than {DECIDED_MS} ms ({'met' if quick else 'missed'})")
    if late:
        late.sort()
        quick = statistics.median(late) * 1e3 < READ_MS
        good &= quick
        print(f"bar: {len(late)} events read on all nodes after {statistics.median(late) * 1e3:.1f} ms, 99 % within "
              f"{late[int(0.99 * (len(late) - 1))] * 1e3:.1f} ms, less than {READ_MS} ms ({'met' if quick else 'missed'})")
    print(f"{sum(right.values())} of {args.trials} right, load {os.getloadavg()[0]:.0f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
