#!/usr/bin/python3
"""What a fault costs: three launchers with two workers each that sleep; from the fault until every survivor's
launcher has said so ("knows"), and until the first worker of the next round runs on every node that is left.
dlaunch, and torchrun where it does the like; medians and maxima.

    bench-faults.py BUILD_DIR [RUNS]     SLOW_RUNS=3 (torchrun)

 dead worker    kill -9 of a worker; --max_restarts 1
 dead launcher  kill -9 of the agent of the last node; MIN 2, MAX 3
 silent node    kill -STOP of that node's guardian and agent: what a host does that is cut off; known within
                the dead time (here 2 s)
"""
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from bars import TORCHRUN, bar, find_peers, print_bars  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 11
SLOW_RUNS = int(os.environ.get("SLOW_RUNS", "3"))
LIMIT_S = 60
NODES, EACH = 3, 2
DEAD_S = 2.0
FAULTS = ["dead worker", "dead launcher", "silent node"]
SAYS = {
    "dlaunch": {"dead worker": ["was killed by SIGKILL"], "dead launcher": ["was lost"], "silent node": ["was lost"]},
    "torchrun": {"dead worker": [], "dead launcher": [], "silent node": []},
}
os.environ["OMP_NUM_THREADS"] = "1"


class Launcher:
    """One node's launcher; when which line came."""

    def __init__(self, command):
        self.p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, start_new_session=True)
        self.lines = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.p.stderr:
            self.lines.append((time.monotonic_ns(), line.decode(errors="replace")))

    def when(self, after, words):
        return next((ns for ns, line in list(self.lines) if ns >= after and any(w in line for w in words)), None)

    def agent(self):
        """Its guardian's only child; None when it is gone."""
        with open(f"/proc/{self.p.pid}/task/{self.p.pid}/children") as f:
            return next(iter(map(int, f.read().split())), None)

    def end(self):
        for pid in filter(None, [self.p.poll() is None and self.agent(), self.p.pid]):
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.p.wait()


def commands(name, fault, worker):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    nodes = "3" if fault == "dead worker" else "2:3"
    conf = f"keep_alive_interval={DEAD_S / 10},keep_alive_max_attempt=10,last_call_timeout=1" if name == "dlaunch" \
        else "last_call_timeout=1"
    common = ["--nproc_per_node", str(EACH), "--max_restarts", "3", "--nnodes", nodes, "--rdzv_backend", "c10d",
              "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", port]
    head = [f"{BUILD}/dlaunch"] if name == "dlaunch" else [*TORCHRUN, "--no_python", "--monitor_interval", "0.1"]
    return [[*head, *common, "--rdzv_conf", f"is_host={int(i == 0)},{conf}", *worker] for i in range(NODES)]


def stamps(path):
    """Lines of (rank, node, pid, ns)."""
    try:
        with open(path) as f:
            return [line.split() for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


def since(path, start):
    return [s for s in stamps(path) if int(s[3]) > start]


def wait_for(fact):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if fact():
            return True
        time.sleep(0.0005)
    return False


def strike(name, fault, tmp):
    """(ms until all survivors have said so, or None; ms from then, or from the fault, until the next round runs)."""
    path, second = f"{tmp}/stamps", f"{tmp}/second"
    for old in (path, second):
        if os.path.exists(old):
            os.unlink(old)
    nodes = [Launcher(c) for c in commands(name, fault, [f"{BUILD}/tests/bench/stamp", path, second])]
    survivors = nodes if fault == "dead worker" else nodes[:2]
    try:
        if not wait_for(lambda: len(stamps(path)) == NODES * EACH):
            return None
        time.sleep(0.3)
        last = nodes[2]
        start = time.monotonic_ns()
        if fault == "dead worker":
            os.kill(int([s for s in stamps(path) if s[0] == "1"][0][2]), signal.SIGKILL)
        elif fault == "dead launcher":
            os.kill(last.agent() if name == "dlaunch" else last.p.pid, signal.SIGKILL)
        else:
            os.kill(last.p.pid, signal.SIGSTOP)
            os.kill(last.agent(), signal.SIGSTOP)
        again = len(survivors) * EACH
        if not wait_for(lambda: len(since(path, start)) >= again):
            return None
        knows = [n.when(start, SAYS[name][fault]) for n in survivors]
        runs = max(int(s[3]) for s in since(path, start)[:again])
        if None in knows:
            return None, (runs - start) / 1e6
        return (max(knows) - start) / 1e6, (runs - max(knows)) / 1e6
    finally:
        for n in nodes:
            n.end()
        for s in stamps(path):  # torchrun leaves them
            try:
                with open(f"/proc/{s[2]}/comm") as f:
                    if f.read() == "stamp\n":
                        os.kill(int(s[2]), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass


def show(values):
    return "%.1f, %.1f at most" % (statistics.median(values), max(values)) if values else "-"


def main():
    names = ["dlaunch", *find_peers(["torchrun"])]
    print(f"ms, median and maximum of {RUNS} runs ({SLOW_RUNS} of torchrun); {NODES} launchers, {EACH} workers each; "
          f"dlaunch's dead time {DEAD_S:g} s\n")
    print("%-14s %-10s %30s %30s" % ("", "", "fault to all survivors know", "then to the next round runs"))
    result = {}
    with tempfile.TemporaryDirectory() as tmp:
        for fault in FAULTS:
            for name in names:
                if name == "torchrun" and (fault == "silent node" or not SLOW_RUNS):
                    continue  # its agents time each other out after minutes
                got = [strike(name, fault, tmp) for _ in range(RUNS if name == "dlaunch" else SLOW_RUNS)]
                got = [g for g in got if g]
                knows = [g[0] for g in got if g[0] is not None]
                print("%-14s %-10s %30s %30s%s" % (
                    fault, name, show(knows), show([g[1] for g in got]),
                    "" if len(knows) == len(got) else "   (from the fault: it does not say so)"), flush=True)
                result[fault, name] = knows, [g[1] for g in got]
    for fault, limit in (("dead worker", 5), ("dead launcher", 20), ("silent node", DEAD_S * 1000 + 100)):
        knows, runs = result[fault, "dlaunch"]
        inf = [float("inf")]
        bar(f"{fault}: every survivor knows (median)", statistics.median(knows or inf), limit, " ms")
        bar(f"{fault}: the next round runs after that (median)", statistics.median(runs or inf), 1000, " ms")
    sys.exit(print_bars())


main()
