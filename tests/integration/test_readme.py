#!/usr/bin/python3
"""The commands of README.md, as typed, from the first to the last, in a fresh root: the host's /usr, an empty home with
the repository in it, an empty /usr/local into which README's own `make install` goes, and two hosts, n0 and n1.

A line that begins with "$ ", "n0$ " or "n1$ " is a command ("\\" continues it); what follows in the same block is output
that the command must print, apart from numbers, random names and the order of lines. Commands of n0 and n1 in one block
run at the same time, each on its host. A command must exit with 0, unless its output names another exit status.

BUILD says where the programs are. Needs root, or user namespaces; `ip` (else n0 and n1 are two names of one host).
"""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from facts import sanitizer  # noqa: E402

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BUILD = os.path.realpath(os.environ.get("BUILD", os.path.join(REPO, "build")))
LIMIT_S = 120
ENVIRONMENT = {"HOME": "/home/ann", "USER": "root", "PATH": "/usr/local/bin:/usr/bin:/usr/sbin", "LANG": "C.UTF-8",
               "TERM": "dumb"}


# ----------------------------------------------------------------------------------------- README.md


def blocks(text):
    """[[(host, command, [line of output])]] of the indented blocks that have commands."""
    out, block = [], []
    for line in text.split("\n") + [""]:
        code = line[4:] if line.startswith("    ") else None
        command = re.match(r"(\$|n[01]\$) (.*)", code or "")
        if command:
            block.append([command[1].rstrip("$") or "n0", command[2], []])
        elif code is not None and block and block[-1][1].endswith("\\"):
            block[-1][1] = block[-1][1][:-1] + code.strip()
        elif code is not None and block:
            block[-1][2].append(code)
        elif code is None and line.strip() and block:
            out.append(block)
            block = []
    return out + ([block] if block else [])


# What differs from run to run, and the pattern that it must match: a random id, a random folder, the digest of a network
# and the number with the blanks in front of it.
VARYING = [(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", r"[0-9a-f-]{36}"), (r"(?<=_)[a-z0-9_]{8}(?=/)", r"[a-z0-9_]{8}"),
           (r"[0-9a-f]{16}", r"[0-9a-f]{16}"), (r" *\d+(\.\d+)?", r" *[0-9.]+")]


def pattern(line):
    """What must be found for a line of output in README.md."""
    for varying, wanted in VARYING:
        found = re.search(varying, line)
        if found:
            return pattern(line[:found.start()]) + wanted + pattern(line[found.end():])
    return re.escape(line)


def missing(shown, printed):
    text = "\n".join(line.strip() for line in printed.split("\n"))
    return [line for line in shown if line.strip() and not re.search(f"^{pattern(line.strip())}$", text, re.MULTILINE)]


def expected_status(shown):
    found = re.search(r"exit status (\d+)", "\n".join(shown))
    return int(found[1]) if found else 0


# ---------------------------------------------------------------------------------------------- root


def mount(*args):
    subprocess.run(["mount", *args], check=True)


def bind(source, target):
    """Read-only."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()
    mount("--bind", source, target)
    mount("-o", "remount,bind,ro", target)


def make_root(root):
    mount("-t", "proc", "proc", "/proc")  # nsenter must find the processes of this PID namespace
    mount("-t", "tmpfs", "tmpfs", root)
    for folder in ("proc", "dev/shm", "tmp", "run", "etc", "var/tmp", "home/ann/dlaunch"):
        os.makedirs(f"{root}/{folder}")
    bind("/usr", f"{root}/usr")
    mount("-t", "tmpfs", "tmpfs", f"{root}/usr/local")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            os.symlink(f"usr/{name}", f"{root}/{name}")
        elif os.path.isdir(f"/{name}"):
            bind(f"/{name}", f"{root}/{name}")
    mount("-t", "proc", "proc", f"{root}/proc")
    for device in ("null", "zero", "full", "random", "urandom", "tty"):
        open(f"{root}/dev/{device}", "a").close()
        mount("--bind", f"/dev/{device}", f"{root}/dev/{device}")
    mount("-t", "tmpfs", "tmpfs", f"{root}/dev/shm")
    for link, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{link}")
    os.chmod(f"{root}/tmp", 0o1777)
    for path in ["/etc/alternatives", "/etc/nsswitch.conf", "/etc/ld.so.conf", "/etc/ld.so.conf.d"]:
        if os.path.exists(path):
            (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, root + path, **(
                {"symlinks": True} if os.path.isdir(path) else {}))
    write(f"{root}/etc/passwd", "root:x:0:0:root:/home/ann:/bin/sh\n")
    write(f"{root}/etc/group", "root:x:0:\n")
    for path in glob.glob(f"{REPO}/*"):
        name = os.path.basename(path)
        if not name.startswith("build"):
            bind(path, f"{root}/home/ann/dlaunch/{name}")
    bind(BUILD, f"{root}/home/ann/dlaunch/build")


def write(path, text, mode=0o644):
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)


# --------------------------------------------------------------------------------------------- hosts


class Hosts:
    """n0 is this process's network namespace, n1 that of a process which only waits. Without `ip`: one host."""

    def __init__(self, root):
        self.root, self.enter = root, {"n0": [], "n1": []}
        subprocess.run(["hostname", "n0"], check=True)
        addresses = {"n0": "127.0.0.1", "n1": "127.0.0.1"}
        if shutil.which("ip"):
            addresses = {"n0": "10.77.0.1", "n1": "10.77.0.2"}
            other = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", "hostname n1; echo ready; exec sleep 3600"],
                                     stdout=subprocess.PIPE)
            assert other.stdout.readline() == b"ready\n"
            assert os.readlink(f"/proc/{other.pid}/ns/net") != os.readlink("/proc/self/ns/net")
            self.enter["n1"] = ["nsenter", "-t", str(other.pid), "--net", "--uts"]
            ip = lambda host, line: subprocess.run([*self.enter[host], "ip", *line.split()], check=True)
            ip("n0", f"link add eth0 type veth peer name eth0 netns {other.pid}")
            for host, address in addresses.items():
                ip(host, "link set lo up")
                ip(host, f"addr add {address}/24 dev eth0")
                ip(host, "link set eth0 up")
        else:
            print("README.md: there is no ip command: n0 and n1 are two names of one host")
        write(f"{root}/etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{a} {h}\n" for h, a in addresses.items()))

    def start(self, host, command):
        env = {**ENVIRONMENT, **make_variables()}
        argv = [*self.enter[host], "chroot", self.root, "/bin/bash", "-c", "cd ~/dlaunch && " + command]
        out = tempfile.TemporaryFile("w+", errors="replace")
        p = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        return p, out


def make_variables():
    """Those of an outer make, so that the inner one finds everything built already."""
    words = os.environ.get("MAKEFLAGS", "").split(" -- ")[-1:]
    given = [w for w in shlex.split(" ".join(words)) if re.match(r"[A-Z_]+=", w) and not w.startswith("BUILD=")]
    return {"MAKEFLAGS": " -- " + " ".join(w.replace(" ", "\\ ") for w in given)} if given else {}


FAKE_SRUN = """#!/bin/bash
# One task on each of two hosts, with the variables that Slurm sets for a step.
[[ "$1 $2" = "--nodes=2 --ntasks-per-node=1" ]] || { echo "srun: unexpected arguments: $*" >&2; exit 1; }
shift 2
export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST='n[0-1]'
SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 "$@" &
SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 @N1@ "$@" &
wait -n && wait -n
"""


FAKE_SSH = """#!/bin/bash
# What is behind the options is the host, and a command line for its shell.
while [[ $1 == -* ]]; do
    case $1 in -o | -p) shift 2 ;; *) shift ;; esac
done
[[ $1 = n1 ]] || { echo "ssh: unexpected host: $1" >&2; exit 255; }
exec @N1@ /bin/sh -c "$2"
"""


# ----------------------------------------------------------------------------------------------- run


def run_block(hosts, block):
    """[problem]; consecutive commands of n0 and n1 run together when the block has both."""
    together = any(host == "n1" for host, *_ in block)
    problems, running = [], []
    for i, (host, command, shown) in enumerate(block):
        running.append((host, command, shown, *hosts.start(host, command)))
        if together and i + 1 < len(block):
            continue
        for host, command, shown, p, out in running:
            try:
                status = p.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                p.kill()
                status = "none: it did not end in time"
            out.seek(0)
            printed = out.read()
            lacking = missing(shown, printed)
            if status != expected_status(shown) or lacking:
                problems.append("\n".join([f"{host}$ {command}", f"    exit status {status}", *[
                    f"    README.md shows, and was not printed: {line}" for line in lacking], "    printed:",
                    *["    | " + line for line in printed.rstrip("\n").split("\n")]]))
        running = []
    return problems


def inside(root):
    make_root(root)
    hosts = Hosts(root)
    n1 = shlex.join(["nsenter", *hosts.enter["n1"][1:]]) if hosts.enter["n1"] else ""
    os.makedirs(f"{root}/usr/local/bin")
    for name, text in ("srun", FAKE_SRUN), ("ssh", FAKE_SSH):
        write(f"{root}/usr/local/bin/{name}", text.replace("@N1@", n1), 0o755)
    with open(f"{REPO}/README.md") as f:
        all_blocks = blocks(f.read())
    done = failed = 0
    for block in all_blocks:
        done += len(block)
        start = time.monotonic()
        for problem in run_block(hosts, block):
            failed += 1
            print(problem, flush=True)
        if os.environ.get("V"):
            print("%6.1f s  %s" % (time.monotonic() - start, block[0][1]), flush=True)
    if done < 10:
        failed += 1
        print(f"README.md has only {done} commands")
    summary(done, failed)


def summary(done, failed):
    print("%d%%: Checks: %d, Failures: %d, Errors: 0" % (100 * (done - failed) // max(done, 1), done, failed))
    sys.exit(1 if failed else 0)


def main():
    if len(sys.argv) > 2:
        return inside(sys.argv[2])
    unshare = ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child"]
    if os.getuid() != 0:
        unshare += ["--user", "--map-root-user"]
    why = subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True)
    if why.returncode != 0:
        print("SKIPPED: the commands of README.md: no namespaces can be made here: " + why.stderr.strip())
        return summary(0, 0)
    if sanitizer(BUILD):
        print("SKIPPED: the commands of README.md compile programs without the sanitizer of libdlcoll")
        return summary(0, 0)
    with tempfile.TemporaryDirectory(prefix="dlaunch-readme-") as root:
        sys.exit(subprocess.run([*unshare, sys.executable, os.path.abspath(__file__), "--inside", root]).returncode)


main()
