"""Network namespaces as hosts: each has eth0 on one bridge, a host name and an /etc/hosts of its own."""
import os
import shutil
import subprocess

from jobs import DLAUNCH, Job, Skip

INSIDE = "nsenter --net --mount --uts -t {pid} --"


class Hosts:
    """with Hosts(n, bad=i) as hosts: ... On host i its own name resolves to 127.0.1.1, as after an
    installation of Debian; on the other hosts the names resolve to the addresses."""

    def __init__(self, n, bad=()):
        self.n, self.bad, self.holders = n, bad, []

    @staticmethod
    def address(i):
        return f"10.79.0.{i + 1}"

    def hold(self, name, commands):
        """A process that keeps a host's namespaces; ends with this one."""
        code = f"set -e; hostname {name}; mount --make-rprivate /; ip link set lo up; {commands} echo ready; exec cat"
        p = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "sh", "-c", code], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.holders.append(p)
        if p.stdout.readline() != "ready\n":
            raise Skip("no network namespace can be made here: " + p.stderr.read().strip())
        return p

    def __enter__(self):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        for program in ("ip", "unshare", "nsenter"):
            if not shutil.which(program):
                raise Skip(f"{program} is not installed")
        try:
            self.set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def set_up(self):
        bridge = self.hold("bridge", "ip link add br0 type bridge; ip link set br0 up;")
        for i in range(self.n):
            lines = ["127.0.0.1 localhost", "::1 localhost"]
            lines += [f"{'127.0.1.1' if k == i and i in self.bad else self.address(k)} node{k}" for k in range(self.n)]
            text = "\\n".join(lines)
            host = self.hold(f"node{i}", "mount -t tmpfs hosts /mnt; "
                             f"printf '{text}\\n' > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts; umount -l /mnt;")
            subprocess.run(INSIDE.format(pid=bridge.pid).split() + ["sh", "-ec", f"""
                ip link add port{i} type veth peer name eth0 netns {host.pid}
                ip link set port{i} master br0
                ip link set port{i} up"""], check=True)
            subprocess.run(INSIDE.format(pid=host.pid).split() + ["sh", "-ec", f"""
                ip addr add {self.address(i)}/24 dev eth0
                ip link set eth0 up"""], check=True)

    def __exit__(self, *_):
        Job.end_all()
        for p in reversed(self.holders):
            p.stdin.close()
            p.kill()
            p.wait()

    def start(self, i, *argv, **more):
        return Job(*INSIDE.format(pid=self.holders[i + 1].pid).split(), *argv, **more)

    def dlaunch(self, i, *args, **more):
        return self.start(i, DLAUNCH, *args, **more)

    def cut(self, i):
        """Takes the host off the bridge, silently, both ways."""
        subprocess.run(INSIDE.format(pid=self.holders[0].pid).split() + ["ip", "link", "set", f"port{i}", "nomaster"],
                       check=True)

    def heal(self, i):
        subprocess.run(INSIDE.format(pid=self.holders[0].pid).split() + ["ip", "link", "set", f"port{i}", "master",
                                                                        "br0"], check=True)
