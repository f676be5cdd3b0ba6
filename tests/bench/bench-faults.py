#!/usr/bin/python3
"""What a fault costs: three launchers with two workers each that sleep; from the fault until every survivor's
launcher has said so ("knows"), and until the first worker of the next round runs on every node that is left.
dlaunch, and torchrun of the same commands; medians and maxima, or that it did not come.

    bench-faults.py BUILD_DIR [RUNS]     SLOW_RUNS=5 (torchrun)

 dead worker    kill -9 of a worker; --max_restarts 3
 dead launcher  kill -9 of the agent of the last node (torchrun: of the launcher); MIN 2, MAX 3
 silent node    kill -STOP of all processes of that node; known within the dead time (here 2 s)
 host cut off   each launcher on a host of its own (network namespaces: root); the last one's cable is pulled

torchrun: that of the interpreter that runs this, with LOGLEVEL=INFO, so that it says what it finds, and
--monitor_interval 0.1.
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
BUILD = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["BUILD"] = BUILD
sys.path.insert(0, HERE + "/../torch")

from bars import bar, print_bars  # noqa: E402
from hosts import INSIDE, Hosts  # noqa: E402
from jobs import PYTHON, Skip, torch_version  # noqa: E402

RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 11
SLOW_RUNS = int(os.environ.get("SLOW_RUNS", "5"))
LIMIT_S = 60
NODES, EACH = 3, 2
DEAD_S = 2
FAULTS = ["dead worker", "dead launcher", "silent node", "host cut off"]
SAYS = {"dlaunch": ["was killed by SIGKILL", "was lost"],
        "torchrun": ["will restart worker group", "failed (exitcode"]}
CONF = {"dlaunch": f"keep_alive_interval={DEAD_S / 10},keep_alive_max_attempt=10,last_call_timeout=1",
        # torchrun takes whole seconds.
        "torchrun": f"keep_alive_interval=1,keep_alive_max_attempt={DEAD_S},last_call_timeout=1"}
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["LOGLEVEL"] = "INFO"


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

    def signal_all(self, number):
        """It, its agent if it has one, and its workers."""
        todo = [self.p.pid] if self.p.poll() is None else []
        for pid in todo:
            try:
                with open(f"/proc/{pid}/task/{pid}/children") as f:
                    todo += map(int, f.read().split())
                os.kill(pid, number)
            except (FileNotFoundError, ProcessLookupError):
                pass

    def end(self):
        self.signal_all(signal.SIGKILL)
        self.p.wait()


def commands(name, fault, worker):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    nodes = "3" if fault == "dead worker" else "2:3"
    host = "node0" if fault == "host cut off" else "127.0.0.1"
    common = ["--nproc_per_node", str(EACH), "--max_restarts", "3", "--nnodes", nodes, "--rdzv_backend", "c10d",
              "--rdzv_endpoint", f"{host}:{port}", "--rdzv_id", port]
    head = [f"{BUILD}/dlaunch"] if name == "dlaunch" else [*torchrun(), "--no_python", "--monitor_interval", "0.1"]
    return [[*head, *common, "--rdzv_conf", f"is_host={int(i == 0)},{CONF[name]}", *worker] for i in range(NODES)]


def torchrun():
    old = torch_version() < (2,)
    return [PYTHON] + ([HERE + "/../torch/torchrun_debian.py"] if old else ["-m", "torch.distributed.run"])


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


def strike(name, fault, tmp, hosts):
    """(ms until all survivors have said so, ms until the next round runs on all of them), from the fault on; None:
    not within LIMIT_S."""
    path, second = f"{tmp}/stamps", f"{tmp}/second"
    for old in (path, second):
        if os.path.exists(old):
            os.unlink(old)
    lines = commands(name, fault, [f"{BUILD}/tests/bench/stamp", path, second])
    if hosts:
        lines = [INSIDE.format(pid=h.pid).split() + line for h, line in zip(hosts.holders[1:], lines)]
    nodes = [Launcher(line) for line in lines]
    survivors = nodes if fault == "dead worker" else nodes[:2]
    try:
        if not wait_for(lambda: len(stamps(path)) == NODES * EACH):
            sys.exit(f"bench-faults: {name}: its workers do not start\n" + "".join(t for _, t in nodes[0].lines))
        time.sleep(0.3)
        # torchrun gives ranks as it likes: the last node is one that has not the rendezvous.
        last = nodes[2]
        start = time.monotonic_ns()
        if fault == "dead worker":
            os.kill(int([s for s in stamps(path) if s[0] == "1"][0][2]), signal.SIGKILL)
        elif fault == "dead launcher":
            os.kill(last.agent() if name == "dlaunch" else last.p.pid, signal.SIGKILL)
        elif fault == "silent node":
            last.signal_all(signal.SIGSTOP)
        else:
            hosts.cut(2)
        again = len(survivors) * EACH

        def known():
            when = [n.when(start, SAYS[name]) for n in survivors]
            return None if None in when else (max(when) - start) / 1e6

        def runs():
            new = since(path, start)
            return (max(int(s[3]) for s in new[:again]) - start) / 1e6 if len(new) >= again else None

        wait_for(lambda: known() is not None and runs() is not None)
        return known(), runs()
    finally:
        for n in nodes:
            n.end()
        if fault == "host cut off":
            hosts.heal(2)
        for s in stamps(path):  # torchrun leaves them
            try:
                with open(f"/proc/{s[2]}/comm") as f:
                    if f.read() == "stamp\n":
                        os.kill(int(s[2]), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass


def show(values, n):
    """Of n trials."""
    came = [v for v in values if v is not None]
    if not came:
        return f"not within {LIMIT_S} s"
    text = "%.1f, %.1f at most" % (statistics.median(came), max(came))
    return text if len(came) == n else f"{text} ({len(came)} of {n})"


def try_all(fault, names, tmp, hosts, result):
    for name in names:
        got = []
        for _ in range(RUNS if name == "dlaunch" else SLOW_RUNS):
            got.append(strike(name, fault, tmp, hosts))
            if got[-1] == (None, None):
                break  # it is not asked again
        print("%-14s %-10s %5d %30s %30s" % (fault, name, len(got), show([g[0] for g in got], len(got)),
                                            show([g[1] for g in got], len(got))), flush=True)
        result[fault, name] = got


def main():
    version = torch_version()
    names = ["dlaunch"] + (["torchrun"] if version and SLOW_RUNS else [])
    if not version:
        print(f"SKIPPED: {PYTHON} has no PyTorch (make bench-torchrun installs one)")
    print(f"ms from the fault, median and maximum; {NODES} launchers, {EACH} workers each that sleep; dead time {DEAD_S} s"
          + (f"; torchrun {'.'.join(map(str, version))}" if version else "") + "\n")
    print("%-14s %-10s %5s %30s %30s" % ("", "", "runs", "all survivors know", "the next round runs"))
    result = {}
    with tempfile.TemporaryDirectory() as tmp:
        for fault in FAULTS[:-1]:
            try_all(fault, names, tmp, None, result)
        try:
            with Hosts(NODES) as hosts:
                try_all(FAULTS[-1], names, tmp, hosts, result)
        except Skip as why:
            print(f"SKIPPED: {FAULTS[-1]}: {why}")
    inf = float("inf")
    limits = [("dead worker", 5), ("dead launcher", 20), ("silent node", DEAD_S * 1000 + 100),
              ("host cut off", DEAD_S * 1000 + 100)]
    for fault, limit in limits:
        if (fault, "dlaunch") not in result:
            continue
        got = [tuple(inf if v is None else v for v in g) for g in result[fault, "dlaunch"]]
        bar(f"{fault}: every survivor knows (median)", statistics.median(g[0] for g in got), limit, " ms")
        bar(f"{fault}: the next round runs after that (median)",
            statistics.median(inf if g[1] == inf else g[1] - g[0] for g in got), 1000, " ms")
    sys.exit(print_bars())


main()
