"""Real etcd servers, and launchers that meet by them. Everything ends with this process."""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from facts import LIMIT, Failure, die_with_parent, wait_for


def missing():
    """Why there can be no etcd here, or None."""
    for program in ("etcd", "etcdctl", "openssl"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return None


def free_ports(n):
    """Ports of loopback, not those that the kernel gives to clients."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < n:
            s = held.enter_context(socket.socket())
            port = 10000 + (os.getpid() * 7 + time.monotonic_ns()) % 20000
            try:
                s.bind(("127.0.0.1", port))
                ports.append(port)
            except OSError:
                pass
        return ports


class Command:
    """A process whose output goes to files."""

    started = []

    def __init__(self, folder, name, argv, env=None, inside=None):
        self.name, self.path = name, os.path.join(folder, name)
        whole = dict(os.environ, **(env or {}))
        if inside:
            argv = ["ip", "netns", "exec", inside, *argv]
        with open(self.path + ".out", "ab") as out, open(self.path + ".err", "ab") as err:
            self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=whole, cwd=folder,
                                      preexec_fn=die_with_parent)
        Command.started.append(self)

    @classmethod
    def end_all(cls):
        """Launchers end their workers first."""
        for signo in (signal.SIGTERM, signal.SIGKILL):
            for c in reversed(cls.started):
                if c.p.poll() is None:
                    c.p.send_signal(signo)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        c.p.wait(5)
        cls.started.clear()

    def text(self, what="out"):
        with open(f"{self.path}.{what}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def fail(self, why):
        raise Failure(f"{self.name}: {why}\n--- stdout\n{self.text()}--- stderr\n{self.text('err')}")

    def wait(self, what, pattern, seconds=LIMIT):
        """Until a line of it matches."""
        seen = re.compile(pattern, re.MULTILINE)
        try:
            return wait_for(pattern, lambda: seen.search(self.text(what)), seconds)
        except Failure as why:
            return self.fail(why)

    def ended(self, status, seconds=LIMIT):
        try:
            rc = self.p.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"has not ended within {seconds} s")
        if rc != status:
            self.fail(f"exit status {rc}, not {status}")
        return self

    def kill(self, signo=signal.SIGKILL):
        self.p.send_signal(signo)
        if signo == signal.SIGKILL:
            self.p.wait(LIMIT)


class Etcd:
    """A cluster of n servers. hosts: an address for each, reached inside of the namespaces; else loopback."""

    def __init__(self, folder, n=1, tls=None, hosts=None, inside=None):
        self.folder, self.tls, self.inside = folder, tls, inside
        ports = free_ports(2 * n)
        self.scheme = "https" if tls else "http"
        hosts = hosts or ["127.0.0.1"] * n
        self.places = [f"{hosts[i]}:{ports[2 * i]}" for i in range(n)]
        self.peers = [f"http://{hosts[i]}:{ports[2 * i + 1]}" for i in range(n)]
        self.servers = [None] * n
        for i in range(n):
            self.start(i)
        self.wait_healthy()

    def start(self, i):
        url = f"{self.scheme}://{self.places[i]}"
        argv = ["etcd", "--name", f"s{i}", "--data-dir", os.path.join(self.folder, f"data{i}"),
                "--listen-client-urls", url, "--advertise-client-urls", url,
                "--listen-peer-urls", self.peers[i], "--initial-advertise-peer-urls", self.peers[i],
                "--initial-cluster", ",".join(f"s{k}={p}" for k, p in enumerate(self.peers))]
        if self.tls:
            argv += ["--cert-file", self.tls["server.crt"], "--key-file", self.tls["server.key"],
                     "--trusted-ca-file", self.tls["ca.crt"], "--client-cert-auth"]
        self.servers[i] = Command(self.folder, f"etcd{i}", argv, inside=self.inside)

    def ctl(self, *args, user=None, check=True):
        argv = ["etcdctl", "--endpoints", ",".join(f"{self.scheme}://{p}" for p in self.places)]
        if self.tls:
            argv += ["--cacert", self.tls["ca.crt"], "--cert", self.tls["client.crt"], "--key", self.tls["client.key"]]
        if user:
            argv += ["--user", user]
        if self.inside:
            argv = ["ip", "netns", "exec", self.inside, *argv]
        done = subprocess.run([*argv, *args], env=dict(os.environ, ETCDCTL_API="3"), capture_output=True, text=True,
                              timeout=LIMIT, check=False)
        if check and done.returncode != 0:
            raise Failure(f"etcdctl {' '.join(args)}: {done.stderr}")
        return done

    def wait_healthy(self, user=None):
        wait_for("etcd is healthy", lambda: self.ctl("endpoint", "health", "--cluster", user=user, check=False).returncode == 0)

    def keys(self, user=None):
        return self.ctl("get", "--prefix", "/", "--keys-only", user=user).stdout.split()

    @property
    def endpoint(self):
        return ",".join(self.places)


class Network:
    """Namespaces as hosts: 10.88.0.1 has the bridge, 10.88.0.2 and so on are hosts."""

    def __init__(self, hosts):
        self.names = [f"dl{os.getpid()}n{i}" for i in range(hosts + 1)]
        try:
            self.make()
        except subprocess.SubprocessError:
            self.close()
            raise

    def make(self):
        for name in self.names:
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        hub = self.names[0]
        self.ip("-n", hub, "link", "add", "name", "hub", "type", "bridge")
        self.ip("-n", hub, "addr", "add", "10.88.0.1/24", "dev", "hub")
        self.ip("-n", hub, "link", "set", "hub", "up")
        for i, name in enumerate(self.names[1:], 1):
            self.ip("-n", hub, "link", "add", "name", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.ip("-n", hub, "link", "set", f"p{i}", "master", "hub", "up")
            self.ip("-n", name, "addr", "add", f"10.88.0.{i + 1}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def ip(*args, check=True):
        subprocess.run(["ip", *args], check=check, timeout=LIMIT, capture_output=True)

    def cut(self, host):
        self.ip("-n", self.names[0], "link", "set", f"p{host}", "down")

    def close(self):
        for name in self.names:
            self.ip("netns", "del", name, check=False)


def certificates(folder):
    """An authority, a server's certificate for 127.0.0.1, a client's, and another authority."""
    def run(*argv):
        subprocess.run(["openssl", *argv], check=True, cwd=folder, capture_output=True, timeout=LIMIT)
    for ca in ("ca", "other"):
        run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.crt")
    with open(os.path.join(folder, "ext"), "w", encoding="ascii") as f:
        f.write("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "ext", "-out", f"{name}.crt")
    return {name: os.path.join(folder, name) for name in os.listdir(folder) if name.endswith((".crt", ".key"))}


def temporary():
    return tempfile.TemporaryDirectory(prefix="dlaunch-etcd.")
