"""Containers as Kubernetes starts them, on this machine: runc, each with its own network, PID, mount, UTS and IPC
namespaces, behind one bridge, with a name server that may answer late. Needs root, runc and ip(8).

A Network has Pods. Nothing is left behind: the namespaces live in processes that end with this one, and a pod that
still runs is killed by close().
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from facts import LIMIT, Failure, die_with_parent, wait_for

DOMAIN = "default.svc.cluster.local"


def missing():
    """Why there can be no pods here, or None."""
    if os.geteuid() != 0:
        return "containers need the user root"
    for program in ("runc", "ip", "nsenter", "unshare"):
        if not shutil.which(program):
            return f"{program} is not installed"
    made = subprocess.run(["unshare", "--net", "ip", "link", "add", "br0", "type", "bridge"], capture_output=True)
    return "this machine does not allow new network namespaces with bridges" if made.returncode else None


def ip(namespace, *lines):
    subprocess.run(["nsenter", "-t", str(namespace), "-n", "ip", "-batch", "-"], input="\n".join(lines), text=True,
                   check=True, timeout=LIMIT)


class Namespace:
    """A network namespace and the process that holds it."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 3600"],
                                       stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        self.holder.stdout.readline()
        self.pid = self.holder.pid

    def close(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Network:
    """The bridge, its name server, and the pods."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="dlaunch-pods.")
        self.switch, self.pods, self.names = Namespace(), [], {}
        ip(self.switch.pid, "link set lo up", "link add br0 type bridge", "addr add 10.88.0.1/24 dev br0",
           "link set br0 up")
        self.write_names()
        self.dns = subprocess.Popen(["nsenter", "-t", str(self.switch.pid), "-n", sys.executable, "-B",
                                     os.path.join(os.path.dirname(os.path.abspath(__file__)), "name_server.py"),
                                     "10.88.0.1", self.names_file()], stdout=subprocess.PIPE,
                                    preexec_fn=die_with_parent)
        self.dns.stdout.readline()

    def names_file(self):
        return os.path.join(self.folder, "names")

    def write_names(self):
        with open(self.names_file() + ".new", "w") as f:
            json.dump(self.names, f)
        os.rename(self.names_file() + ".new", self.names_file())

    def publish(self, pod, after=0.0):
        """The pod's name resolves from `after` seconds on; until then the answer is that there is no such name."""
        self.names[pod.full_name] = [pod.address, time.time() + after]
        self.write_names()

    def unpublish(self, pod):
        self.names.pop(pod.full_name, None)
        self.write_names()

    def close(self):
        for pod in self.pods:
            pod.close()
        self.dns.kill()
        self.dns.wait()
        self.dns.stdout.close()
        self.switch.close()
        shutil.rmtree(self.folder)


# What a container of a pod may do unless its manifest says otherwise, as containerd has it.
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
                "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL",
                "CAP_AUDIT_WRITE"]
KUBERNETES = ["KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443"]


class Pod:
    """A pod of one container.

    root      the image's file tree
    argv      command and arguments
    env       a list of NAME=VALUE
    user      uid, gid
    shm       bytes of /dev/shm; 0: there is none
    read_only the root file system
    home      the variable HOME, or None
    tmp       whether /tmp is an emptyDir that can be written to
    refuse    {system call: errno}
    log       whether there is a /dev/termination-log
    mounts    {path in the pod: (path here, "ro" or "rw")}
    """

    def __init__(self, network, name, service, root, argv, env=(), user=(65532, 65532), shm=64 << 20, read_only=True,
                 home=None, tmp=True, refuse=None, log=True, mounts=None):
        self.network, self.name = network, name
        self.full_name = f"{name}.{service}.{DOMAIN}"
        number = len(network.pods) + 2
        self.address = f"10.88.0.{number}"
        self.folder = os.path.join(network.folder, f"{number}")
        self.id = f"dlaunch-{os.getpid()}-{number}"
        self.log_file = os.path.join(self.folder, "termination-log")
        self.process = None
        self.namespace = Namespace()
        os.mkdir(self.folder)
        ip(self.namespace.pid, "link set lo up",
           f"link add eth0 type veth peer name pod{number} netns {network.switch.pid}",
           f"addr add {self.address}/24 dev eth0", "link set eth0 up")
        ip(network.switch.pid, f"link set pod{number} master br0 up")
        self.write("hosts", "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost\n"
                   f"{self.address}\t{self.full_name}\t{name}\n")
        self.write("resolv.conf", f"search {DOMAIN} svc.cluster.local cluster.local\nnameserver 10.88.0.1\n"
                   "options ndots:5\n")
        mounts = dict(mounts or {})
        mounts["/etc/hosts"] = (os.path.join(self.folder, "hosts"), "rw")
        mounts["/etc/resolv.conf"] = (os.path.join(self.folder, "resolv.conf"), "rw")
        if log:
            self.write("termination-log", "")
            os.chmod(self.log_file, 0o666)
            mounts["/dev/termination-log"] = (self.log_file, "rw")
        env = ["PATH=/usr/local/bin:/usr/bin:/bin", f"HOSTNAME={name}", *KUBERNETES, *env]
        if home is not None:
            env.append(f"HOME={home}")
        self.env = env
        self.config = self.oci(root, list(argv), user, shm, read_only, tmp, refuse or {}, mounts)
        self.write("config.json", json.dumps(self.config))
        network.pods.append(self)
        network.publish(self)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w") as f:
            f.write(text)

    def oci(self, root, argv, user, shm, read_only, tmp, refuse, mounts):
        def mount(path, kind, *options, source=None):
            return {"destination": path, "type": kind, "source": source or kind, "options": list(options)}
        dev = [mount("/proc", "proc"),
               mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
               mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
               mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
               mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro")]
        if shm:
            dev.append(mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", f"size={shm}"))
        if tmp:
            dev.append(mount("/tmp", "tmpfs", "nosuid", "nodev", "mode=1777"))
        dev += [mount(path, "bind", "bind", access, source=source) for path, (source, access) in mounts.items()]
        capabilities = CAPABILITIES if user[0] == 0 else []
        seccomp = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
                   "syscalls": [{"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": number}
                                for name, number in refuse.items()]}
        return {"ociVersion": "1.0.2", "root": {"path": root, "readonly": read_only}, "hostname": self.name,
                "mounts": dev,
                "process": {"user": {"uid": user[0], "gid": user[1]}, "args": argv, "env": self.env, "cwd": "/",
                            "noNewPrivileges": True, "capabilities": {key: capabilities for key in
                                                                      ("bounding", "effective", "permitted")}},
                "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "uts"}, {"type": "ipc"},
                                         {"type": "network", "path": f"/proc/{self.namespace.pid}/ns/net"}],
                          "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                          "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
                          **({"seccomp": seccomp} if refuse else {})}}

    # ---------------------------------------------------------------------------------------- life

    def runc(self, *arguments, **options):
        return ["runc", "--root", os.path.join(self.network.folder, "runc"), *arguments]

    def start(self):
        self.out = open(os.path.join(self.folder, "out"), "w+")
        self.err = open(os.path.join(self.folder, "err"), "w+")
        self.process = subprocess.Popen(self.runc("run", "--bundle", self.folder, self.id), stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.err, preexec_fn=die_with_parent)
        return self

    def text(self, stream="out"):
        with open(os.path.join(self.folder, stream), errors="replace") as f:
            return f.read()

    def both(self):
        return f"--- {self.name}, stdout\n{self.text('out')}--- stderr\n{self.text('err')}"

    def expect(self, text, stream="out", seconds=LIMIT):
        def there():
            found = self.text(stream)
            if text not in found and self.process.poll() is not None and text not in self.text(stream):
                raise Failure(f"{self.name} ended ({self.process.returncode}) without '{text}'\n{self.both()}")
            return text in found
        try:
            wait_for(f"'{text}' of {self.name}", there, seconds)
        except Failure as why:
            raise Failure(f"{why}\n{self.both()}") from None

    def ended(self, status, seconds=LIMIT):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} has not ended after {seconds} s\n{self.both()}") from None
        if self.process.returncode != status:
            raise Failure(f"{self.name}: exit status {self.process.returncode}, not {status}\n{self.both()}")

    def signal(self, name):
        subprocess.run(self.runc("kill", self.id, name), check=True, timeout=LIMIT)

    def exec(self, *argv):
        """As kubectl exec and an exec probe: (exit status, output)."""
        done = subprocess.run(self.runc("exec", self.id, *argv), capture_output=True, text=True, timeout=LIMIT)
        return done.returncode, done.stdout + done.stderr

    def pids(self):
        """The processes of the container, numbered as here; the first is its process 1."""
        done = subprocess.run(self.runc("ps", "--format", "json", self.id), capture_output=True, text=True,
                              timeout=LIMIT)
        return sorted(json.loads(done.stdout) or []) if done.returncode == 0 else []

    def delete(self, grace=30.0):
        """As the kubelet ends a pod: SIGTERM, then SIGKILL to process 1. Returns the seconds it took."""
        begin = time.monotonic()
        self.signal("TERM")
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.signal("KILL")
            self.process.wait(LIMIT)
        return time.monotonic() - begin

    def termination_message(self):
        with open(self.log_file, "rb") as f:
            return f.read()

    def close(self):
        if self.process:
            if self.process.poll() is None:
                subprocess.run(self.runc("kill", self.id, "KILL"), capture_output=True, timeout=LIMIT)
                self.process.wait(LIMIT)
            subprocess.run(self.runc("delete", "--force", self.id), capture_output=True, timeout=LIMIT)
            self.out.close()
            self.err.close()
        self.namespace.close()
