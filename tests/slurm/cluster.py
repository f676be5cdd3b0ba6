"""A Slurm cluster on this machine: munged, slurmctld and a slurmd for each node. Every host has its own network, PID,
mount, UTS and IPC namespaces, behind one bridge, and a /tmp and a /dev/shm of its own. Jobs belong to an ordinary
user. Needs root, ip(8), and Debian's slurm-wlm and munge.

All files are in one folder, and all processes end with this one, so nothing is left behind.
"""
import glob
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from facts import LIMIT, Failure, die_with_parent, wait_for

USER = 1234
CPUS = 8  # of each node, as far as Slurm knows

SLURM_CONF = """\
ClusterName=test
SlurmctldHost=head(10.89.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/{task}
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0,sched_min_interval=1000
ReturnToService=2
SlurmdTimeout=10
KillWait=5
OverTimeLimit=0
MailProg=/bin/true
NodeName={nodes} CPUs={cpus} RealMemory=4000
PartitionName=test Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES DefMemPerCPU=100
"""

CGROUP_CONF = """\
CgroupPlugin={cgroup}
ConstrainCores=yes
ConstrainRAMSpace={ram}
"""

# Process 1 of a host: makes the file systems its own, then takes in orphans.
INIT = r"""
set -e
mount --make-rprivate /
mount --bind "$F" /mnt
mount -t tmpfs tmpfs /tmp; chmod 1777 /tmp
mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm
mkdir -p "$F"; mount --move /mnt "$F"
mount -t proc proc /proc
mount --bind "$F/hosts" /etc/hosts
mount --bind "$F/passwd" /etc/passwd
mount --bind "$F/group" /etc/group
hostname "$NAME"
echo
sleep 36000 & wait
"""


def missing():
    """Why there can be no Slurm here, or None."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs the user root"
    for program in ("munged", "slurmctld", "slurmd", "srun", "ip", "nsenter", "unshare"):
        if not shutil.which(program):
            return f"{program} is not installed"
    made = subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount", "ip", "link", "add", "br0", "type",
                           "bridge"], capture_output=True)
    return "this machine does not allow new network namespaces with bridges" if made.returncode else None


def limits_memory():
    """Whether slurmd can limit the memory of a step here."""
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        if os.path.exists(f"{folder}/cgroup.controllers") or os.path.exists(f"{folder}/memory.limit_in_bytes"):
            return True
    print("SKIPPED: memory limits of a step: there is no cgroup for memory", flush=True)
    return False


def cgroups(name):
    """The folders that the slurmd of a node has made."""
    return glob.glob(f"/sys/fs/cgroup/*/slurm_{name}") + glob.glob(f"/sys/fs/cgroup/slurm_{name}")


class Host:
    def __init__(self, cluster, name, number):
        self.cluster, self.name, self.number = cluster, name, number
        self.address = f"10.89.0.{number}"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL", "sh", "-c", INIT],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,
            env={"PATH": os.environ["PATH"], "F": cluster.folder, "NAME": name})
        if not self.holder.stdout.readline():
            raise Failure(f"{name}: no namespaces")
        with open(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children") as f:
            self.pid = int(f.read().split()[0])  # process 1 of the host

    def inside(self, *argv, user=False):
        """argv that runs argv on this host."""
        enter = ["nsenter", "-t", str(self.pid), "--net", "--pid", "--mount", "--uts", "--ipc", "--wdns=/"]
        return [*enter, *(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if user else []), *argv]

    def run(self, *argv, user=False, check=True):
        done = subprocess.run(self.inside(*argv, user=user), env=self.cluster.env, capture_output=True, text=True,
                              timeout=LIMIT, stdin=subprocess.DEVNULL)
        if check and done.returncode:
            raise Failure(f"{self.name}: {' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def daemon(self, *argv):
        log = open(os.path.join(self.cluster.folder, f"{argv[0]}.{self.name}.out"), "a")
        p = subprocess.Popen(self.inside(*argv), env=self.cluster.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             preexec_fn=die_with_parent)
        log.close()
        return p

    def leftovers(self):
        """What jobs have left here: processes, files, and the cgroups of steps. The folder of control
        sockets stays, with what dlaunchctl tells of ended jobs."""
        ps = self.run("ps", "-U", str(USER), "-o", "pid=,args=", check=False).stdout.splitlines()
        files = self.run("find", "/tmp", "/dev/shm", "-xdev", "-mindepth", "1", "-user", str(USER), "!", "-path",
                         f"/tmp/dlaunch-{USER}", "!", "-path", f"/tmp/dlaunch-{USER}/*.ended").stdout.splitlines()
        return ps + files + [j for f in cgroups(self.name) for j in glob.glob(f"{f}/uid_*/job_*")]

    def link(self, state):
        ip(self.cluster.hosts[0].pid, f"link set {self.name} {state}")

    def kill(self, silent=True):
        """The host is gone, if silent without a word to anybody."""
        if silent:
            self.link("down")
        os.kill(self.pid, signal.SIGKILL)
        self.holder.wait()
        self.holder.stdout.close()
        self.cluster.hosts.remove(self)
        self.cluster.nodes.remove(self)


def ip(pid, *lines):
    subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"], input="\n".join(lines), text=True, check=True,
                   timeout=LIMIT)


class Command:
    """What the user types on the head node."""

    def __init__(self, cluster, number, argv, env):
        self.what = " ".join(argv)
        self.paths = {s: os.path.join(cluster.folder, f"{number}.{s}") for s in ("out", "err")}
        with open(self.paths["out"], "w") as out, open(self.paths["err"], "w") as err:
            self.process = subprocess.Popen(cluster.head.inside(*argv, user=True), stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, env={**cluster.env, **env}, preexec_fn=die_with_parent)

    def text(self, stream="out"):
        with open(self.paths[stream], errors="replace") as f:
            return f.read()

    def both(self):
        return f"--- {self.what}\n--- stdout\n{self.text('out')}--- stderr\n{self.text('err')}"

    def fail(self, why):
        raise Failure(f"{why}\n{self.both()}")

    def expect(self, text, stream="out", times=1):
        def there():
            return self.text(stream).count(text) >= times
        try:
            wait_for(f"'{text}'", lambda: there() or self.process.poll() is not None)
        except Failure as why:
            self.fail(why)
        if not there():
            self.fail(f"ended ({self.process.returncode}) without '{text}'")
        return self

    def ended(self, status):
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.fail(f"has not ended after {LIMIT} s")
        if status is not None and self.process.returncode != status:
            self.fail(f"exit status {self.process.returncode}, not {status}")
        return self

    def says(self, *texts, stream="out"):
        """Each of the lines stands in the output exactly once."""
        lines = self.text(stream).splitlines()
        for text in texts:
            if lines.count(text) != 1:
                self.fail(f"'{text}' is there {lines.count(text)} times")
        return self


class Cluster:
    """head and <tag>1 ... <tag><nodes>; cpus: of each node, as far as Slurm knows. The cgroups of a node have its name,
    and are those of the whole machine: the tag keeps clusters apart."""

    def __init__(self, nodes, programs, cpus=CPUS, proctrack="cgroup", task="none", ram="no"):
        self.folder = tempfile.mkdtemp(prefix="dlaunch-slurm.")
        os.chmod(self.folder, 0o755)
        self.hosts, self.daemons, self.commands, self.names = [], [], [], []
        self.home = f"{self.folder}/home"
        self.env = {"PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH": f"{self.folder}/bin",
                    "SLURM_CONF": f"{self.folder}/slurm.conf", "HOME": self.home, "USER": "ann", "LANG": "C.UTF-8"}
        try:
            self.start(nodes, programs, cpus, proctrack, task, ram)
        except BaseException:
            self.close()
            raise

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    def start(self, nodes, programs, cpus, proctrack, task, ram):
        tag = f"t{secrets.token_hex(3)}n"
        self.names = names = ["head", *(f"{tag}{i + 1}" for i in range(nodes))]
        for name in ("bin", "munge", "state", "home"):
            os.mkdir(os.path.join(self.folder, name))
        os.chmod(self.home, 0o755)
        os.chown(self.home, USER, USER)
        for program in programs:
            shutil.copy(program, os.path.join(self.folder, "bin"))
        with open("/etc/passwd") as f:
            self.write("passwd", f.read() + f"ann:x:{USER}:{USER}::{self.home}:/bin/sh\n")
        with open("/etc/group") as f:
            self.write("group", f.read() + f"ann:x:{USER}:\n")
        self.write("hosts", "127.0.0.1 localhost\n" + "".join(f"10.89.0.{i + 1} {n}\n" for i, n in enumerate(names)))
        with open(os.path.join(self.folder, "munge/key"), "wb") as f:
            f.write(os.urandom(128))
        os.chmod(f.name, 0o400)
        cgroup = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        self.write("cgroup.conf", CGROUP_CONF.format(cgroup="cgroup/v2" if cgroup else "cgroup/v1", ram=ram))
        self.write("slurm.conf", SLURM_CONF.format(
            folder=self.folder, cpus=cpus, nodes=f"{tag}[1-{nodes}]", proctrack=proctrack, task=task))
        for i, name in enumerate(names):
            self.hosts.append(Host(self, name, i + 1))
        self.head, self.nodes = self.hosts[0], self.hosts[1:]
        head = self.head
        ip(head.pid, "link set lo up", "link add br0 type bridge", "addr add 10.89.0.1/24 dev br0", "link set br0 up")
        for h in self.nodes:
            ip(h.pid, "link set lo up", f"link add eth0 type veth peer name {h.name} netns {head.pid}",
               f"addr add {h.address}/24 dev eth0", "link set eth0 up")
            ip(head.pid, f"link set {h.name} master br0 up")
        munge = os.path.join(self.folder, "munge")
        self.daemons.append(head.daemon("munged", "--foreground", "--force", f"--socket={munge}/socket",
                                        f"--key-file={munge}/key", f"--pid-file={munge}/pid",
                                        f"--log-file={munge}/log", f"--seed-file={munge}/seed"))
        wait_for("munged", lambda: os.path.exists(f"{munge}/socket"))
        self.daemons.append(head.daemon("slurmctld", "-D"))
        for h in self.nodes:
            self.daemons.append(h.daemon("slurmd", "-D", "-N", h.name))
        wait_for("the nodes", self.is_idle)

    def is_idle(self):
        out = self.head.run("sinfo", "-h", "-N", "-o", "%t", check=False).stdout.split()
        return out.count("idle") == len(self.nodes)

    def type(self, line, **env):
        """Runs a line of the shell, as the user, in the home folder."""
        self.commands.append(Command(self, len(self.commands), ["sh", "-c", f"cd; {line}"], env))
        return self.commands[-1]

    def empty_home(self):
        """All but the job token."""
        for entry in os.scandir(self.home):
            if not entry.name.startswith("."):
                os.unlink(entry.path)

    def home_write(self, name, text):
        path = os.path.join(self.home, name)
        with open(path, "w") as f:
            f.write(text)
        os.chown(path, USER, USER)

    def home_file(self, name):
        path = os.path.join(self.home, name)
        if not os.path.exists(path):
            return ""
        with open(path, errors="replace") as f:
            return f.read()

    def state(self):
        """What Slurm and the hosts know of jobs that do not end."""
        said = [self.head.run(*line.split(), check=False).stdout for line in ("sinfo -N", "squeue -l", "squeue -s")]
        for h in self.hosts:
            said.append(f"--- {h.name}\n" + h.run("ps", "-e", "-o", "pid=,ppid=,stat=,wchan:20=,args=", check=False).stdout)
        for path in glob.glob(f"{self.folder}/slurm*.log"):
            with open(path, errors="replace") as f:
                said.append(f"--- {os.path.basename(path)}\n" + "".join(f.readlines()[-20:]))
        return "\n".join(said)

    def expect_clean(self, seconds=LIMIT):
        """Nothing of any job is left, and all nodes are free again."""
        wait_for("the nodes are free", self.is_idle, seconds)
        left = {}

        def clean():
            left.clear()
            left.update({h.name: h.leftovers() for h in self.hosts if h.leftovers()})
            return not left
        try:
            wait_for("nothing is left", clean, 10)
        except Failure as why:
            raise Failure(f"{why}: {left}") from None

    def close(self):
        for h in reversed(self.hosts):
            h.holder.kill()
            h.holder.wait()
            h.holder.stdout.close()
        for p in self.daemons + [c.process for c in self.commands]:
            p.wait(LIMIT)
        for folder in [f for name in self.names for f in cgroups(name)]:
            subprocess.run(["find", folder, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"], capture_output=True)
        shutil.rmtree(self.folder)
