#!/usr/bin/python3
"""Faults without end: 4 launchers with 4 workers each train a network (examples/train.c), which writes a checkpoint
after every epoch. Every few seconds one process is killed (a worker, an agent, a guardian), one is stopped and goes on
later, or connections are cut (root); a launcher that has ended is started again. In every other job, the first one
among them, the coordinator is on one of the nodes, whose launcher is killed too, again and again: the others choose
another one. In the rest the coordinator is a launcher outside of them.

    soak.py BUILD_DIR [MINUTES] [SEED]

One job after the other, for MINUTES (30). Of each:
  - it ends by itself, all launchers with 0, and with the same parameters, bit for bit, as without faults
  - no process is left, no file, nothing under /dev/shm
  - the launchers that lived through it have not grown: neither memory nor descriptors
  - the ledger of each launcher adds up to the time of all nodes: to 100.00 %
"""
import glob
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(sys.argv[1])
MINUTES = float(sys.argv[2]) if len(sys.argv) > 2 else 30
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
NODES, WORKERS = 4, 4
JOB_S = min(240.0, MINUTES * 60 / 2)  # about, without faults
QUIET_S = 120  # to come to its end when no faults are left, on a machine that may be busy
GROWN_KB, GROWN_FDS = 2048, 8
OFFICE_FDS = 2 * NODES * WORKERS  # of who has become the coordinator: the workers' connections to the store
TRAIN = ["--data", "examples/data", "--batch", "64"]
MARK = f"SOAK_OF={os.getpid()}"
os.environ["OMP_NUM_THREADS"] = "1"
chance = random.Random(SEED)


def fail(text):
    print(f"soak: {text}   (seed {SEED})", flush=True)
    sys.exit(1)


# -------------------------------------------------------------------------------------------- processes

def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def processes():
    """All that have our mark: {pid: parent}."""
    found = {}
    for entry in glob.glob("/proc/[0-9]*"):
        if MARK.encode() in read(entry + "/environ").split(b"\0"):
            stat = read(entry + "/stat").rsplit(b")", 1)
            if len(stat) == 2 and stat[1].split()[0] not in (b"Z", b"X"):
                found[int(entry[6:])] = int(stat[1].split()[1])
    return found


def children(pid, parents):
    return [p for p, parent in parents.items() if parent == pid]


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def size_of(pid):
    """Its memory (kB of its own) and descriptors; None: it is gone."""
    status = read(f"/proc/{pid}/status").decode()
    try:
        kb = sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
        return (kb, len(os.listdir(f"/proc/{pid}/fd"))) if kb else None
    except OSError:
        return None


# -------------------------------------------------------------------------------------------------- a job

class Job:
    def __init__(self, number, epochs):
        self.elects = number % 2 == 0
        self.dir = tempfile.mkdtemp(prefix="dlaunch-soak-")
        self.epochs = epochs
        self.launchers = [None] * NODES
        self.born = [0.0] * NODES
        self.late = set()  # launchers that ended when all was done
        self.sizes = {}   # of each agent and guardian: [(time, kb, fds)]
        self.logs_of = {}  # of each of them: its log, and where that began
        self.log_begins = [0] * NODES
        self.counts = {}
        self.name = f"soak-{os.getpid()}-{number}"
        sockets = [socket.socket() for _ in range(NODES if self.elects else 1)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        self.endpoint = ",".join("127.0.0.1:%d" % s.getsockname()[1] for s in sockets)
        for s in sockets:
            s.close()
        os.mkdir(f"{self.dir}/run", 0o700)
        os.mkdir(f"{self.dir}/tmp", 0o700)
        self.coordinator = None if self.elects else self.start("coordinator", ["--rdzv_only"], "true")
        for i in range(NODES):
            self.start_node(i)

    def start(self, name, extra, is_host="false"):
        env = dict(os.environ, XDG_RUNTIME_DIR=f"{self.dir}/run", TMPDIR=f"{self.dir}/tmp")
        env.update([MARK.split("=")])
        with open(f"{self.dir}/{name}.log", "ab") as log:
            return subprocess.Popen(
                [f"{BUILD}/dlaunch", "--nnodes", f"2:{NODES}", "--rdzv_backend", "c10d", "--rdzv_id", self.name,
                 "--rdzv_endpoint", self.endpoint, "--elastic", "--max_restarts", "1000000",
                 "--rdzv_conf", "keep_alive_interval=1,keep_alive_max_attempt=4,last_call_timeout=2,"
                 f"is_host={is_host}", *extra],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def start_node(self, i):
        self.log_begins[i] = len(read(f"{self.dir}/node{i}.log"))
        self.launchers[i] = self.start(f"node{i}", [
            "--nproc_per_node", str(WORKERS), "--ledger", "--report", f"{self.dir}/report{i}.json",
            f"{BUILD}/examples/train", *TRAIN, "--epochs", str(self.epochs),
            "--checkpoint", f"{self.dir}/state", "--out", f"{self.dir}/result"],
            "true" if self.elects and i == 0 else "false")
        self.born[i] = time.monotonic()

    def epoch(self):
        state = read(f"{self.dir}/state")
        return struct.unpack_from("<i", state, 12)[0] if len(state) > 16 else 0

    def running(self):
        """The launchers themselves, those that the test knows: nodes, and the coordinator outside of them."""
        return [p for p in [self.coordinator, *self.launchers] if p and p.poll() is None]

    def leader(self):
        """The launcher that has the coordinator, and how many nodes its round has; (None, 0): none says so."""
        env = dict(os.environ, XDG_RUNTIME_DIR=f"{self.dir}/run")
        try:
            out = subprocess.run([f"{BUILD}/dlaunchctl", "--json", "status"], capture_output=True, text=True, env=env,
                                 timeout=20, check=False).stdout
            jobs = [j for j in json.loads(out) if j.get("coordinator")]
        except (subprocess.TimeoutExpired, ValueError):
            return None, 0
        parents = processes()
        for p in self.running():
            for j in jobs:
                if j["pid"] in [p.pid, *children(p.pid, parents)]:
                    return p, j["nodes"]
        return None, 0

    def elections(self):
        return sum(read(path).count(b"this node is the coordinator now") for path in glob.glob(f"{self.dir}/*.log"))

    def logs(self):
        return "\n".join(f"--- {path}\n" + read(path).decode(errors="replace")[-3000:]
                         for path in sorted(glob.glob(f"{self.dir}/*.log")))

    def wrong(self, text):
        print(self.logs())
        for pid in processes():
            send(pid, signal.SIGKILL)
        fail(f"{text}; logs in {self.dir}")

    def measure(self):
        parents = processes()
        for p in self.running():
            for pid in [p.pid, *children(p.pid, parents)]:
                size = size_of(pid)
                if size and p in self.launchers:
                    i = self.launchers.index(p)
                    self.logs_of[pid] = f"{self.dir}/node{i}.log", self.log_begins[i]
                if size:
                    self.sizes.setdefault(pid, []).append((time.monotonic(), *size))

    def check_growth(self):
        """Of each process that lived long: the least memory and the most descriptors, early and late."""
        worst = [0, 0]
        for pid, seen in self.sizes.items():
            if len(seen) < 30:
                continue
            early, late = seen[:len(seen) // 3], seen[-(len(seen) // 3):]
            kb = min(s[1] for s in late) - max(s[1] for s in early)
            fds = min(s[2] for s in late) - max(s[2] for s in early)
            path, at = self.logs_of.get(pid, ("", 0))
            fds -= OFFICE_FDS if b"this node is the coordinator now" in read(path)[at:] else 0
            worst = [max(worst[0], kb), max(worst[1], fds)]
            if kb > GROWN_KB or fds > GROWN_FDS:
                self.wrong(f"process {pid} has grown by {kb} kB and {fds} descriptors")
        return worst

    # ------------------------------------------------------------------------------------------ faults

    def revive(self):
        for i, p in enumerate(self.launchers):
            if p.poll() is None or i in self.late:
                continue
            if self.epoch() >= self.epochs:  # the job is over, and would not have it back
                self.late.add(i)
                continue
            if p.returncode == 0:
                self.wrong(f"launcher {i} has ended with 0 before the job")
            self.count("started again")
            self.start_node(i)

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def cut(self, pid):
        out = subprocess.run(["ss", "-Htnp", "state", "established"], capture_output=True, text=True, check=False).stdout
        mine = [line.split() for line in out.splitlines() if f"pid={pid}," in line]
        if not mine:
            return False
        here, there = (a.rsplit(":", 1)[1] for a in chance.choice(mine)[2:4])
        return subprocess.run(["ss", "-Kt", f"sport = :{here} and dport = :{there}"], capture_output=True,
                              check=False).returncode == 0

    def fault(self, what=None):
        parents = processes()
        guardian = chance.choice(self.launchers).pid
        agents = children(guardian, parents)
        workers = [w for a in agents for w in children(a, parents)]
        kinds = ["worker", "worker", "worker", "agent", "guardian", "stop worker", "stop agent", "stop guardian",
                 "stop coordinator"] + (["cut"] * 2 if os.geteuid() == 0 and shutil.which("ss") else [])
        if self.elects:
            kinds += ["coordinator"] * 3
        what = what or chance.choice(kinds)
        leader = self.leader()[0] if "coordinator" in what else None
        victims = {"worker": workers, "agent": agents, "guardian": [guardian],
                   "coordinator": leader and ([leader.pid] if what == "coordinator" else []) +
                   children(leader.pid, parents),
                   "cut": agents + workers}[what.split()[-1]]
        if not victims:
            return
        victim = chance.choice(victims)
        if what == "cut":
            done = self.cut(victim)
        elif what.startswith("stop"):
            done = send(victim, signal.SIGSTOP)
            most = 1.5 if "coordinator" in what else 6 if chance.random() < 0.3 else 1
            time.sleep(chance.uniform(0.01, most))
            send(victim, signal.SIGCONT)
        else:
            done = send(victim, signal.SIGKILL)
        if done:
            self.count(what)

    def run(self, until):
        last_epoch, moved, next_fault, begun = 0, time.monotonic(), time.monotonic() + 3, not self.elects
        while self.epoch() < self.epochs * 3 // 4 and time.monotonic() < until:
            time.sleep(0.25)
            self.measure()
            if self.coordinator and self.coordinator.poll() is not None:
                self.wrong(f"the coordinator has ended with {self.coordinator.returncode}")
            if not begun:  # the first fault is one that takes an election, and leaves a majority
                begun = self.leader()[1] == NODES
                if begun:
                    self.fault("coordinator")
                    next_fault = time.monotonic() + 8
            elif time.monotonic() >= next_fault:
                self.fault()
                next_fault = time.monotonic() + chance.choice([0.1, chance.uniform(0.5, 3), chance.uniform(2, 8)])
            self.revive()
            if self.epoch() > last_epoch:
                last_epoch, moved = self.epoch(), time.monotonic()
            elif time.monotonic() - moved > 2 * QUIET_S:
                self.wrong(f"no step forward for {2 * QUIET_S} s, at epoch {last_epoch}")

    def check_ledgers(self):
        paths = glob.glob(f"{self.dir}/report*.json")
        if not paths:
            self.wrong("no launcher has written a report")
        for path in paths:
            ledger = json.loads(read(path))["ledger"]
            total = ledger["total_s"]
            parts = sum(v for k, v in ledger.items() if k.endswith("_s") and k != "total_s")
            if abs(parts - total) > total / 20000:
                self.wrong(f"{path}: the ledger adds up to {parts} of {total} s: {ledger}")

    def finish(self, result):
        deadline, done = time.monotonic() + QUIET_S, 0
        while self.running():
            self.revive()
            if self.epoch() > done:
                done, deadline = self.epoch(), time.monotonic() + QUIET_S
            if time.monotonic() > deadline:
                self.wrong("it does not come to its end")
            time.sleep(0.1)
        for i, p in enumerate([*self.launchers, self.coordinator]):
            if p and p.returncode != 0 and not (i in self.late and p.returncode in (-signal.SIGKILL, 137)):
                self.wrong(f"launcher {i} has ended with {p.returncode}")
        if read(f"{self.dir}/result") != result:
            self.wrong(f"another result: {read(self.dir + '/result')}, not {result}")
        if self.elects and self.counts.get("coordinator") and not self.elections():
            self.wrong("the coordinator's launcher was killed, and no other has taken its place")
        self.counts["elections"] = self.elections()
        self.check_ledgers()
        grown = self.check_growth()
        gone = time.monotonic() + 5
        while processes() and time.monotonic() < gone:
            time.sleep(0.05)
        if processes():
            self.wrong(f"processes are left: {processes()}")
        left = os.listdir(f"{self.dir}/tmp") + [f for _, _, files in os.walk(f"{self.dir}/run") for f in files
                                                  if not f.endswith(".ended")]  # for dlaunchctl, for a day
        if left:
            self.wrong(f"files are left: {left}")
        shutil.rmtree(self.dir)
        return grown


# -------------------------------------------------------------------------------------------------- the soak

def train_alone(epochs):
    """The result without faults, by one worker: the same, whatever their number. And the seconds it took."""
    with tempfile.TemporaryDirectory(prefix="dlaunch-soak-") as d:
        begun = time.monotonic()
        subprocess.run([f"{BUILD}/dlaunch", "--nproc_per_node", "1", f"{BUILD}/examples/train", *TRAIN, "--epochs",
                        str(epochs), "--out", f"{d}/result"], check=True, stdout=subprocess.DEVNULL)
        return read(f"{d}/result"), time.monotonic() - begun


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/../..")
    begun, jobs, counts, grown = time.monotonic(), 0, {}, [0, 0]
    end = begun + MINUTES * 60
    shm = sorted(os.listdir("/dev/shm"))
    print(f"soak: {NODES} launchers of {WORKERS} workers, {MINUTES:g} minutes, seed {SEED}", flush=True)
    _, seconds = train_alone(20)
    epochs = max(40, int(20 * JOB_S / 4 / seconds))
    result, _ = train_alone(epochs)
    while time.monotonic() < end or jobs == 0:
        job, job_begun = Job(jobs, epochs), time.monotonic()
        job.run(end)
        worst = job.finish(result)
        grown = [max(a, b) for a, b in zip(grown, worst)]
        jobs += 1
        for what, n in job.counts.items():
            counts[what] = counts.get(what, 0) + n
        print(f"  job {jobs}: {epochs} epochs in {time.monotonic() - job_begun:.0f} s, "
              f"{sum(n for w, n in job.counts.items() if w not in ('started again', 'elections'))} faults, "
              f"{job.counts['elections']} elections, right", flush=True)
    if sorted(os.listdir("/dev/shm")) != shm:
        fail(f"/dev/shm holds what it did not: {set(os.listdir('/dev/shm')) - set(shm)}")
    faults = ", ".join(f"{what} {n}" for what, n in sorted(counts.items()))
    print(f"{jobs} jobs, all with the result of the job without faults; 0 processes left, 0 files; no launcher grew by "
          f"more than {grown[0]} kB and {grown[1]} descriptors\nfaults: {faults}")


if __name__ == "__main__":
    main()
