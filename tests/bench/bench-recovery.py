#!/usr/bin/python3
"""A restart as its user feels it: from kill -9 of a rank to the first all_reduce that has finished on every rank of the
next round; two launchers with two workers each, interleaved, medians in ms.

    bench-recovery.py BUILD_DIR [RUNS]     run by the Python that has PyTorch

  detect   the node of the killed rank stops its other workers      start    the workers' processes exist
  stop     no worker of the round is alive on any node              import   the program has imported
  meet     the nodes have agreed on the next round                  group    init_process_group(), dlcoll_init()
  first    the first all_reduce has finished (DDP: construction, forward, backward)

The last columns: anonymous memory in MB of the warm interpreters of one node, each page divided by the number of
processes that share it (PSS): in the first round, and after a restart, when the workers share most of it.
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
from bars import bar, print_bars  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
LIMIT_S = 180
NODES, EACH, VICTIM = 2, 2, 3
PARTS = ["detect", "stop", "meet", "start", "import", "group", "first"]
STATES = {"RUNNING -> STOPPING": "detect", "STOPPING -> RENDEZVOUS": "stop", "RENDEZVOUS -> STARTING": "meet",
          "STARTING -> RUNNING": "start"}
os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=f"{HERE}/../../collectives/python:{os.environ.get('PYTHONPATH', '')}",
                  PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", DLCOLL_LIBRARY=f"{BUILD}/libdlcoll.so")


class Launcher:
    def __init__(self, command):
        self.p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.lines = []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.p.stderr:
            self.lines.append((time.monotonic_ns(), line.decode(errors="replace")))

    def times(self, words, after=0):
        return [ns for ns, line in list(self.lines) if words in line and ns > after]

    def pids(self, rank):
        found = [re.search(rf"rank {rank} \(local rank \d+\) is pid (\d+)", line) for _, line in list(self.lines)]
        return [int(m[1]) for m in found if m]

    def end(self):
        self.p.terminate()
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            self.p.kill()


def commands(name, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    common = ["--nproc_per_node", str(EACH), "--max_restarts", "9", "--nnodes", str(NODES)]
    program, warm = name.split(", ") if ", " in name else (name, "off")
    worker = {"C": [f"{BUILD}/tests/bench/recovery", f"{folder}/stamps"]}.get(
        program, [f"{HERE}/recovery.py", "gloo" if program != "dlcoll DDP" else "dlcoll", f"{folder}/stamps"])
    if program == "torchrun":
        head = [sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.1", "--rdzv_backend", "c10d",
                "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", port]
        return [head + common + worker for _ in range(NODES)]
    return [[f"{BUILD}/dlaunch", "--verbose", "--warm", "auto" if warm == "warm" else "off", "--node_rank", str(i),
             "--master_port", port, *common, *worker] for i in range(NODES)]


def stamps(folder, what, number):
    """Times of this round, by rank."""
    try:
        with open(f"{folder}/stamps") as f:
            found = [line.split() for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return {}
    return {s[2]: int(s[3]) for s in found if s[0] == what and s[1] == str(number)}


def until(fact):
    end = time.monotonic() + LIMIT_S
    while not fact():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


def memory(launcher, workers):
    """MB of the node's warm interpreters."""
    agent = open(f"/proc/{launcher.p.pid}/task/{launcher.p.pid}/children").read().split()[0]
    total = 0
    for pid in open(f"/proc/{agent}/task/{agent}/children").read().split():
        if int(pid) not in workers:
            with open(f"/proc/{pid}/smaps_rollup") as f:
                total += sum(int(line.split()[1]) for line in f if line.startswith("Pss_Anon:"))
    return total / 1024


def recover(name, folder):
    """(ms of each part, of all, memory before and after); the victim is killed twice, and the second time counts, when
    all caches are warm."""
    launchers = [Launcher(c) for c in commands(name, folder)]
    torchrun, warm, used = name.startswith("torchrun"), name.endswith("warm"), []
    try:
        for number in (0, 1):
            until(lambda: len(stamps(folder, "first", number)) == NODES * EACH)
            if warm:
                until(lambda: all(len(n.times("warm interpreters are ready")) > number for n in launchers))
                used.append(memory(launchers[0], launchers[0].pids(0)[-1:] + launchers[0].pids(1)[-1:]))
            if torchrun:
                victim = int(subprocess.check_output(["pgrep", "-f", f"recovery.py gloo {folder}/stamps"]).split()[-1])
            else:
                until(lambda: any(len(n.pids(VICTIM)) > number for n in launchers))
                victim = next(n.pids(VICTIM)[-1] for n in launchers if n.pids(VICTIM))
            killed = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
        until(lambda: len(stamps(folder, "first", 2)) == NODES * EACH)
        until(lambda: torchrun or all(n.times("STARTING -> RUNNING", killed) for n in launchers))
        ends = {} if torchrun else {part: max(n.times(words, killed)[0] for n in launchers)
                                    for words, part in STATES.items()}
        if not torchrun:
            ends["detect"] = min(n.times("RUNNING -> STOPPING", killed)[0] for n in launchers)
        ends.update({what: max(stamps(folder, what, 2).values()) for what in ("import", "group", "first")})
        parts, before = {}, killed
        for part in PARTS:
            if part in ends:
                parts[part], before = max(0, ends[part] - before) * 1e-6, max(before, ends[part])
        return parts, (ends["first"] - killed) * 1e-6, used
    finally:
        for n in launchers:
            n.end()


def main():
    names = ["C", "gloo DDP, cold", "gloo DDP, warm", "dlcoll DDP, cold", "dlcoll DDP, warm", "torchrun"]
    names = [n for n in names if n in os.environ.get("NAMES", ";".join(names)).split(";")]
    rows = {name: [] for name in names}
    for _ in range(RUNS):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    rows[name].append(recover(name, folder))
                except (TimeoutError, StopIteration, IndexError, OSError, subprocess.CalledProcessError) as e:
                    print(f"{name}: a run did not work: {e!r}", flush=True)
    print(f"ms from kill -9 of a rank, medians of {RUNS} interleaved runs\n")
    print("%-18s" % "" + "".join("%8s" % p for p in PARTS) + "%9s %16s %8s %8s" % ("all", "least..most", "MB", "MB later"))
    medians = {}
    for name, runs in rows.items():
        if not runs:
            continue
        totals = [total for _, total, _ in runs]
        medians[name] = statistics.median(totals)
        part = lambda p: [parts[p] for parts, _, _ in runs if p in parts]
        print("%-18s" % name + "".join("%8s" % ("%.1f" % statistics.median(part(p)) if part(p) else "") for p in PARTS) +
              "%9.0f %16s" % (medians[name], "%.0f..%.0f" % (min(totals), max(totals))) +
              "".join("%9.1f" % statistics.median([m[i] for _, _, m in runs]) for i in (0, 1) if runs[0][2]))
    for name in ("gloo DDP, warm", "dlcoll DDP, warm"):
        if name in medians:
            bar(f"kill -9 to the first all_reduce, {name}", medians[name], 500, " ms")
    if rows.get("gloo DDP, warm"):
        for i, what in enumerate(("in the first round", "later")):
            bar(f"memory of the warm interpreters of a node {what}",
                statistics.median([m[i] for _, _, m in rows["gloo DDP, warm"]]), 150, " MB")
    sys.exit(print_bars())


main()
