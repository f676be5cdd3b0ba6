#!/usr/bin/python3
"""Random faults between hosts that are network namespaces (root): 3 launchers with a worker each train a network
(examples/train.c), while one or two faults happen; a launcher that has ended is started again.

    net_trials.py BUILD_DIR [TRIALS] [SEED] [JOBS]

JOBS trials (2) run at a time, each on hosts of its own. TRIALS (100) in all. Of each trial:
  - the job ends, and with the same parameters as without faults, bit for bit
  - workers of two rounds are never alive at the same time, nor two workers of one rank: by the time stamps that the
    workers write themselves (tests/fake/stamps.c)
  - every launcher ends, those that are left over at the latest 10 s after SIGTERM
  - no process is left on a host, and no file
Trial k of SEED n has the same faults in every run; SEED=n:k runs it alone.
"""
import collections
import ctypes
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

BUILD = os.path.abspath(sys.argv[1])
TRIALS = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else 100
SEED, _, ONLY = (sys.argv[3] if len(sys.argv) > 3 and sys.argv[3] else str(random.randrange(1 << 30))).partition(":")
JOBS = int(sys.argv[4]) if len(sys.argv) > 4 and sys.argv[4] else 2
NODES = 3
STRANGER = NODES  # a host without dlaunch
PORT = 29500
EPOCHS = 60
END_S = 120  # for all of a trial, on a machine that may be busy
DEAD = "keep_alive_interval=0.25,keep_alive_max_attempt=8,last_call_timeout=0.5,join_timeout=60"
STAMP = struct.Struct("<QQiiii16s")
LIBC = ctypes.CDLL(None)


class Wrong(Exception):
    pass


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def wait_for(what, seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"{what}: not within {seconds} s")
        time.sleep(0.02)


# ----------------------------------------------------------------------------------------------- hosts

class Hosts:
    """A bridge with NODES hosts and a stranger. They vanish with the processes that hold them."""

    def __init__(self):
        self.bridge = self.hold("switch")
        self.sh(self.bridge, "ip link add br0 type bridge && ip link set br0 up")
        self.holders = [self.hold(f"host{i}") for i in range(NODES + 1)]
        self.net = [os.stat(f"/proc/{p.pid}/ns/net").st_ino for p in self.holders]
        for i, p in enumerate(self.holders):
            self.sh(p, f"ip link set lo up && ip link add eth0 type veth peer name h{i} netns {self.bridge.pid} && "
                       f"ip addr add {self.addr(i)}/24 dev eth0 && ip link set eth0 up && "
                       "mount -t tmpfs -o size=4m disk /mnt")
            self.sh(self.bridge, f"ip link set h{i} master br0 && ip link set h{i} up")
        self.macs = [self.sh(p, "cat /sys/class/net/eth0/address").strip() for p in self.holders]

    @staticmethod
    def hold(name):
        p = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "sh", "-c",
                              f"hostname {name} && mount --make-rprivate / && mount -t sysfs sys /sys; echo up; "
                              "exec sleep infinity"], stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        if p.stdout.readline() != b"up\n":
            raise OSError("this machine does not allow new network namespaces (root is needed)")
        return p

    @staticmethod
    def addr(host):
        return f"10.77.0.{host + 1}"

    @staticmethod
    def enter(holder):
        return ["nsenter", "-t", str(holder.pid), "--net", "--uts", "--mount", "--wd=.", "--"]

    def sh(self, holder, command):
        done = subprocess.run([*self.enter(holder), "sh", "-c", command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{command}: {done.stderr}")
        return done.stdout

    def on(self, host, command):
        return self.sh(self.holders[host], command)

    def processes(self, host):
        """{pid: name} of all processes on a host but the one that holds it."""
        found = {}
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.stat(f"/proc/{entry}/ns/net").st_ino == self.net[host]:
                    found[int(entry)] = read(f"/proc/{entry}/comm").decode().strip()
            except OSError:
                pass
        found.pop(self.holders[host].pid, None)
        return found

    def port_of(self, host, state):
        self.sh(self.bridge, f"bridge link set dev h{host} state {state}")

    def cut(self, host):
        self.port_of(host, 0)

    def heal(self, host):
        self.port_of(host, 3)

    def filter(self, host, hook, rule):
        interface = "iif" if hook == "input" else "oif"
        self.on(host, f"nft 'table inet faults {{ chain c {{ type filter hook {hook} priority 0; {interface} eth0 "
                      f"{rule}; }}; }}'")

    def unfilter(self, host):
        self.on(host, "nft delete table inet faults")

    def take_over(self, host):
        """The stranger answers at the address of the host, for all others."""
        self.on(STRANGER, f"ip addr add {self.addr(host)}/24 dev eth0")
        for i in range(NODES):
            if i != host:
                self.on(i, f"ip neigh replace {self.addr(host)} lladdr {self.macs[STRANGER]} dev eth0 nud permanent")

    def give_back(self, host):
        self.on(STRANGER, f"ip addr del {self.addr(host)}/24 dev eth0")
        for i in range(NODES):
            if i != host:
                self.on(i, f"ip neigh del {self.addr(host)} dev eth0")

    def kill(self, host, number=signal.SIGKILL):
        while True:
            pids = self.processes(host)
            for pid in pids:
                send(pid, number)
            if not pids or number != signal.SIGKILL:
                return


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


# ---------------------------------------------------------------------------------------------- a trial

class Trial:
    def __init__(self, hosts, number, expected):
        self.hosts = hosts
        self.number = number
        self.chance = random.Random(f"{SEED}:{number}")
        self.expected = expected
        self.dir = tempfile.mkdtemp(prefix="dlaunch-trial-")
        self.launchers = [None] * NODES
        self.down = set()  # hosts without power
        self.faults = []
        self.many = self.chance.random() < 0.5  # --rdzv_endpoint names all hosts
        for name in ["stamps", "config", *[f"run{i}" for i in range(NODES)]]:
            os.mkdir(f"{self.dir}/{name}", 0o700)

    def start(self, i):
        endpoint = ",".join(f"{self.hosts.addr(k)}:{PORT}" for k in range(NODES if self.many else 1))
        env = dict(os.environ, XDG_RUNTIME_DIR=f"{self.dir}/run{i}", TMPDIR="/mnt", STAMPS=f"{self.dir}/stamps",
                   XDG_CONFIG_HOME=f"{self.dir}/config", OMP_NUM_THREADS="1")
        with open(f"{self.dir}/node{i}.log", "ab") as log:
            self.launchers[i] = subprocess.Popen(
                [*self.hosts.enter(self.hosts.holders[i]), f"{BUILD}/dlaunch", "--nnodes", f"2:{NODES}", "--elastic",
                 "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", f"trial-{self.number}",
                 "--rdzv_conf", DEAD, "--max_restarts", "1000", "--nproc_per_node", "1", "--redirects", "3",
                 "--log_dir", "/mnt/logs", "env", f"LD_PRELOAD={BUILD}/tests/fake/stamps.so",
                 f"{BUILD}/examples/train", "--data", "examples/data", "--batch", "512", "--epochs", str(EPOCHS),
                 "--checkpoint", f"{self.dir}/state", "--out", f"{self.dir}/result"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, preexec_fn=die_with_parent)

    def stamps(self):
        found = []
        for name in os.listdir(f"{self.dir}/stamps"):
            data = read(f"{self.dir}/stamps/{name}")
            if len(data) == STAMP.size:
                start, last, rank, size, restart, port, host = STAMP.unpack(data)
                if start:
                    found.append((start, last, rank, (restart, size, port), host.rstrip(b"\0").decode()))
        return sorted(found)

    def check_stamps(self):
        stamps = self.stamps()
        for k, a in enumerate(stamps):
            for b in stamps[k + 1:]:
                if b[0] > a[1]:
                    continue
                both = (min(a[1], b[1]) - b[0]) / 1e6
                if a[3] != b[3] or a[2] == b[2]:
                    raise Wrong(f"workers of two rounds were alive for {both:.1f} ms at the same time: "
                                f"{a[4]} rank {a[2]} of (restart, size, port) {a[3]} and {b[4]} rank {b[2]} of {b[3]}")

    def named(self, host, name):
        return [pid for pid, comm in self.hosts.processes(host).items() if comm == name]

    # ------------------------------------------------------------------------------------------ faults

    def fault(self):
        hosts, host = self.hosts, self.chance.randrange(NODES)
        what = self.chance.choice(["kill", "stop", "power", "flap", "cut", "one way", "takeover", "reset", "firewall",
                                   "disk"])
        process = self.chance.choice(["dlaunch", "dl-agent", "train"])
        hook = self.chance.choice(["input", "output"])
        seconds = self.chance.choice([self.chance.uniform(0.05, 1), self.chance.uniform(1, 4)])
        self.faults.append(f"{what} host{host}" + (f" {process}" if what in ("kill", "stop") else "") +
                           (f" {hook}" if what in ("one way", "reset", "firewall") else "") + f" {seconds:.1f} s")
        if what == "kill":
            for pid in self.named(host, process):
                send(pid, signal.SIGKILL)
        elif what == "stop":
            pids = self.named(host, process)
            for pid in pids:
                send(pid, signal.SIGSTOP)
            time.sleep(seconds)
            for pid in pids:
                send(pid, signal.SIGCONT)
        elif what == "power":
            self.down.add(host)
            hosts.cut(host)
            hosts.kill(host)
            time.sleep(seconds)
            hosts.on(host, "rm -rf /mnt/*")
            hosts.heal(host)
            self.down.discard(host)
        elif what == "flap":
            for _ in range(4):
                hosts.cut(host)
                time.sleep(seconds / 4)
                hosts.heal(host)
                time.sleep(0.2)
        elif what == "cut":
            hosts.cut(host)
            time.sleep(seconds)
            hosts.heal(host)
        elif what in ("one way", "reset", "firewall"):
            hosts.filter(host, hook, {"one way": "drop",
                                      "reset": "meta l4proto tcp numgen inc mod 20 < 1 reject with tcp reset",
                                      "firewall": "meta l4proto tcp reject with tcp reset"}[what])
            time.sleep(seconds)
            hosts.unfilter(host)
        elif what == "takeover":
            hosts.take_over(host)
            time.sleep(seconds)
            hosts.give_back(host)
        elif what == "disk":
            hosts.on(host, "dd if=/dev/zero of=/mnt/full bs=4k 2>/dev/null || true")
            time.sleep(seconds)
            hosts.on(host, "rm -f /mnt/full")

    # ------------------------------------------------------------------------------------------- its run

    def finished(self):
        return os.path.exists(f"{self.dir}/result")

    def revive(self):
        for i, p in enumerate(self.launchers):
            if p.poll() is not None and i not in self.down and not self.finished():
                if p.returncode == 0:
                    raise Wrong(f"the launcher of host{i} has ended with 0 before the job")
                self.start(i)

    def run(self):
        for i in range(NODES):
            self.start(i)

        def up():
            for i, p in enumerate(self.launchers):
                if p.poll() is not None:
                    raise Wrong(f"the launcher of host{i} has ended with {p.returncode} before any fault")
            return len({s[4] for s in self.stamps()}) == NODES
        wait_for("the job starts on all hosts", END_S, up)
        for _ in range(self.chance.choice([1, 1, 2])):
            time.sleep(self.chance.uniform(0, 0.3))
            self.fault()
            self.revive()

        def over():
            self.revive()
            return self.finished() and any(p.poll() == 0 for p in self.launchers)
        wait_for("the job ends", END_S, over)
        late = time.monotonic() + 3  # a node that was away learns that the job is over, or waits for it
        while time.monotonic() < late and any(p.poll() is None for p in self.launchers):
            time.sleep(0.02)
        for p in self.launchers:
            if p.poll() is None:
                p.send_signal(signal.SIGCONT)
        for i in range(NODES):
            for pid in self.named(i, "dlaunch"):
                send(pid, signal.SIGTERM)
        wait_for("the launchers that are left end after SIGTERM", 10,
                 lambda: all(p.poll() is not None for p in self.launchers))
        if read(f"{self.dir}/result") != self.expected:
            raise Wrong(f"another result: {read(self.dir + '/result')}, not {self.expected}")
        self.check_stamps()
        for i in range(NODES):
            wait_for(f"host{i} is empty", 5, lambda host=i: not self.hosts.processes(host))
            left = [f for _, _, files in os.walk(f"{self.dir}/run{i}") for f in files]
            left += [f for f in self.hosts.on(i, "ls -A /mnt").split() if f != "logs"]
            if left and not any(f.startswith(("power", "kill")) for f in self.faults):
                raise Wrong(f"files are left on host{i}: {left}")
        shutil.rmtree(self.dir)

    def close(self):
        for i in range(NODES):
            self.hosts.kill(i)
            self.hosts.on(i, "rm -rf /mnt/*")
        for p in self.launchers:
            if p:
                p.wait()


# --------------------------------------------------------------------------------------------- all trials

class Trials:
    def __init__(self, numbers, expected):
        self.numbers = collections.deque(numbers)
        self.expected = expected
        self.lock = threading.Lock()
        self.done, self.bad, self.counts = 0, 0, collections.Counter()
        self.begun = time.monotonic()

    def work(self):
        hosts = Hosts()
        while True:
            with self.lock:
                if not self.numbers:
                    break
                trial = Trial(hosts, self.numbers.popleft(), self.expected)
            wrong = ""
            try:
                trial.run()
            except (Wrong, OSError) as e:
                wrong = str(e)
            trial.close()
            with self.lock:
                self.done += 1
                self.bad += bool(wrong)
                self.counts.update(f.split(" host")[0] for f in trial.faults)
                if wrong:
                    print(f"trial {SEED}:{trial.number} ({'; '.join(trial.faults)}): {wrong}\n  logs in {trial.dir}",
                          flush=True)
                    hosts = Hosts()  # whatever the trial has left
                elif self.done % 20 == 0:
                    print(f"  {self.done} trials in {time.monotonic() - self.begun:.0f} s, {self.bad} wrong", flush=True)


def train_alone():
    with tempfile.TemporaryDirectory(prefix="dlaunch-trial-") as d:
        subprocess.run([f"{BUILD}/dlaunch", "--nproc_per_node", "1", f"{BUILD}/examples/train", "--data",
                        "examples/data", "--batch", "512", "--epochs", str(EPOCHS), "--out", f"{d}/result"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return read(f"{d}/result")


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/../..")
    if os.geteuid() != 0:
        sys.exit("net-trials: network namespaces need root")
    print(f"net-trials: {1 if ONLY else TRIALS} trials, seed {SEED}{':' + ONLY if ONLY else ''}", flush=True)
    trials = Trials([int(ONLY)] if ONLY else range(TRIALS), train_alone())
    threads = [threading.Thread(target=trials.work) for _ in range(1 if ONLY else JOBS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    faults = ", ".join(f"{what} {n}" for what, n in sorted(trials.counts.items()))
    print(f"{trials.done} trials in {time.monotonic() - trials.begun:.0f} s, {trials.bad} wrong; faults: {faults}")
    sys.exit(1 if trials.bad else 0)


if __name__ == "__main__":
    main()
