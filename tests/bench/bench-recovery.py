#!/usr/bin/python3
"""A restart as its user feels it: from kill -9 of a rank to the first all_reduce that has finished on every rank of the
next round; two launchers with two workers each, medians in ms.

    bench-recovery.py BUILD_DIR     run by the Python that has PyTorch; QUICK=1: under 4 minutes; NAMES="C;torchrun"

  detect   the node of the killed rank stops its other workers      start    the workers' processes exist
  stop     no worker of the round is alive on any node              import   the program has imported
  meet     the nodes have agreed on the next round                  group    init_process_group(), dlcoll_init()
  first    the first all_reduce has finished (DDP: construction, forward, backward)

The last columns: MB of anonymous memory on the first node when its workers have trained, each page divided by the number
of processes that share it (Pss_Anon of /proc/PID/smaps_rollup):

  node     all workers and warm interpreters, after the last restart
  share    the warm interpreters of these
  adds     by how much less the node uses when the warm interpreters have been killed
"""
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from bars import bar, bar_fact, print_bars  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
NAMES = ["C", "gloo DDP, cold", "gloo DDP, warm", "dlcoll DDP, cold", "dlcoll DDP, warm", "torchrun"]
QUICK = bool(os.environ.get("QUICK"))
JOBS = 1 if QUICK else 3                                                    # of each row, interleaved
KILLS = {name: 5 if name == "C" or "warm" in name else 2 for name in NAMES}  # in each job
LIMIT_S = 60 if QUICK else 120                                              # for a start or a restart
NODES, EACH, VICTIM = 2, 2, 3
PARTS = ["detect", "stop", "meet", "start", "import", "group", "first"]
STATES = {"RUNNING -> STOPPING": "detect", "STOPPING -> RENDEZVOUS": "stop", "RENDEZVOUS -> STARTING": "meet",
          "STARTING -> RUNNING": "start"}
os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=f"{HERE}/../../collectives/python:{os.environ.get('PYTHONPATH', '')}",
                  PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", DLCOLL_LIBRARY=f"{BUILD}/libdlcoll.so")


class Failed(Exception):
    pass


class Launcher:
    def __init__(self, command, env):
        self.p = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.lines = []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.p.stderr:
            self.lines.append((time.monotonic_ns(), line.decode(errors="replace").strip()))

    def time(self, words, after=0):
        """When the first line with these words came; None: it has not come."""
        return next((ns for ns, line in list(self.lines) if words in line and ns > after), None)


class Job:
    """Two launchers and their workers, which append to the file `stamps`."""

    def __init__(self, name, folder):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = str(s.getsockname()[1])
        self.stamps, self.began = f"{folder}/stamps", time.monotonic_ns()
        self.torchrun, self.warm, self.c = name == "torchrun", name.endswith("warm"), name == "C"
        common = ["--nproc_per_node", str(EACH), "--max_restarts", str(KILLS[name] + 1), "--nnodes", str(NODES)]
        backend = "dlcoll" if name.startswith("dlcoll") else "gloo"
        worker = ([f"{BUILD}/tests/bench/recovery"] if name == "C" else [f"{HERE}/recovery.py", backend]) + [self.stamps]
        if self.torchrun:
            head = [sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.1", "--rdzv_backend", "c10d",
                    "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", port]
            heads = [head] * NODES
        else:
            heads = [[f"{BUILD}/dlaunch", "--verbose", "--warm", "auto" if self.warm else "off", "--node_rank", str(i),
                      "--master_port", port, "--progress_time", "0"] for i in range(NODES)]
        # torchrun 2.15: in its shared store the nodes of the second round do not find each other's keys
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self.torchrun else None
        self.launchers = [Launcher(head + common + worker, env) for head in heads]

    def until(self, what, fact):
        end = time.monotonic() + LIMIT_S
        while not fact():
            for n in self.launchers:
                if n.p.poll() is not None:
                    raise Failed(f"a launcher ended with {n.p.returncode} before {what}: {(n.lines or [(0, '')])[-1][1]}")
            if time.monotonic() > end:
                raise Failed(f"{what}: not within {LIMIT_S} s")
            time.sleep(0.002)

    def seen(self, what, after):
        """The first (time, pid) of each rank after this time."""
        found = {}
        if os.path.exists(self.stamps):
            with open(self.stamps) as f:
                for kind, rank, ns, pid in (line.split() for line in f if line.endswith("\n")):
                    if kind == what and int(ns) > after:
                        found.setdefault(int(rank), (int(ns), int(pid)))
        return found

    def wait_for_round(self, after):
        """Until the first all_reduce of every rank has finished, and then its training, so that torchrun's nodes do not
        fail one after another. Returns the pids of the ranks."""
        self.until("the first all_reduce of every rank", lambda: len(self.seen("first", after)) == NODES * EACH)
        if not self.torchrun:
            self.until("the state of the launchers", lambda: all(n.time("STARTING -> RUNNING", after) for n in self.launchers))
        if not self.c:
            self.until("50 steps of every rank", lambda: len(self.seen("trained", after)) == NODES * EACH)
        return {rank: pid for rank, (_, pid) in self.seen("first", after).items()}

    def wait_for_interpreters(self, after):
        for n in self.launchers:
            running = n.time("STARTING -> RUNNING", after)
            self.until("the warm interpreters", lambda: n.time("warm interpreters are ready", running))

    def memory(self, pids, after):
        """MB of the first node's processes, of its warm interpreters, and what is freed when these are killed."""
        first = self.launchers[0]
        if self.warm:
            self.wait_for_interpreters(after)
        with open(f"/proc/{first.p.pid}/task/{first.p.pid}/children") as f:
            agent = f.read().split()[0]
        with open(f"/proc/{agent}/task/{agent}/children") as f:
            children = [int(pid) for pid in f.read().split()]
        sizes = {pid: pss(pid) for pid in children}
        interpreters = [pid for pid in children if pid not in pids.values()]
        if self.warm and len(interpreters) != EACH + 1:
            raise Failed(f"{len(interpreters)} warm interpreters, not {EACH + 1}")
        for pid in interpreters:
            os.kill(pid, signal.SIGKILL)
        self.until("the end of the warm interpreters", lambda: not any(is_running(pid) for pid in interpreters))
        left = sum(pss(pid) for pid in children if pid not in interpreters)
        return sum(sizes.values()), sum(sizes[pid] for pid in interpreters), sum(sizes.values()) - left

    def kill(self, pid):
        """Kills a worker and waits for the next round: ({part: ms}, ms of all, pids of the ranks)."""
        killed = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        pids = self.wait_for_round(killed)
        ends = {} if self.torchrun else {part: max(n.time(words, killed) for n in self.launchers)
                                         for words, part in STATES.items()}
        if not self.torchrun:
            ends["detect"] = min(n.time("RUNNING -> STOPPING", killed) for n in self.launchers)
        ends.update({what: max(ns for ns, _ in self.seen(what, killed).values()) for what in ("import", "group", "first")})
        parts, before = {}, killed
        for part in PARTS:
            if part in ends:
                parts[part], before = max(0, ends[part] - before) * 1e-6, max(before, ends[part])
        return parts, (ends["first"] - killed) * 1e-6, pids, killed

    def end(self):
        for n in self.launchers:
            n.p.terminate()
        for n in self.launchers:
            try:
                n.p.wait(20)
            except subprocess.TimeoutExpired:
                n.p.kill()
        for pid in os.listdir("/proc"):  # torchrun's workers, after kill()
            try:
                with open(f"/proc/{pid}/cmdline") as f:
                    if pid.isdigit() and self.stamps in f.read():
                        os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("Pss_Anon:")) / 1024


class Row:
    def __init__(self):
        self.starts, self.recoveries, self.memory, self.failures = [], [], [], []


def measure(name, row, folder):
    job = Job(name, folder)
    try:
        pids, after = job.wait_for_round(0), 0
        row.starts.append((max(ns for ns, _ in job.seen("first", 0).values()) - job.began) * 1e-6)
        for _ in range(KILLS[name]):
            if job.warm:
                job.wait_for_interpreters(after)
            parts, total, pids, after = job.kill(pids[VICTIM])
            row.recoveries.append((parts, total))
        if not job.torchrun:
            row.memory.append(job.memory(pids, after))
    except (Failed, OSError) as e:
        row.failures.append(str(e))
    finally:
        job.end()


def print_row(name, row):
    if not row.recoveries:
        print(f"{name:18}no restart was measured: {row.failures[0]}")
        return
    totals = [total for _, total in row.recoveries]
    part = lambda p: [parts[p] for parts, _ in row.recoveries if p in parts]
    print("%-18s%8.0f" % (name, statistics.median(row.starts)) +
          "".join("%8s" % ("%.1f" % statistics.median(part(p)) if part(p) else "") for p in PARTS) +
          "%8.0f %14s %4d" % (statistics.median(totals), "%.0f..%.0f" % (min(totals), max(totals)), len(totals)) +
          "".join("%7.1f" % statistics.median(mb) if any(mb) else "" for mb in zip(*row.memory)))
    for why in row.failures:
        print(f"{name}: a job was not measured to its end: {why}")


def main():
    names = [n for n in NAMES if n in os.environ.get("NAMES", ";".join(NAMES)).split(";")]
    rows = {name: Row() for name in names}
    for _ in range(JOBS):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                measure(name, rows[name], folder)
    print("ms from kill -9 of a rank, and from the start of the job to the first all_reduce (\"job\"); medians\n")
    print("%-18s%8s" % ("", "job") + "".join("%8s" % p for p in PARTS) +
          "%8s %14s %4s%7s%7s%7s" % ("all", "least..most", "n", "node", "share", "adds"))
    for name, row in rows.items():
        print_row(name, row)
    for name, row in rows.items():
        bar_fact(f"every restart of {name} is measured", not row.failures, f"{len(row.recoveries)} of {JOBS * KILLS[name]}")
        if name.endswith("warm") and row.recoveries:
            bar(f"kill -9 to the first all_reduce, {name}", statistics.median(t for _, t in row.recoveries), 500, " ms")
        if name.endswith("warm") and row.memory:
            bar(f"memory that the warm interpreters add to a node, {name}", statistics.median(m[2] for m in row.memory), 150,
                " MB")
            cold = rows.get(name.replace("warm", "cold"))
            if cold and cold.memory:
                bar(f"memory of a node, {name}, beside cold", statistics.median(m[0] for m in row.memory),
                    statistics.median(m[0] for m in cold.memory), " MB")
    sys.exit(print_bars())


main()
