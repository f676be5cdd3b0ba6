#!/usr/bin/env python3
"""Builds the container image, looks at it, and runs it: two pods with a network of their own, process 1, signals.

    test_image.py BUILD

Needs root, buildah, runc, ip(8) and a static busybox, which is the shell in the containers.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pods
from pods import LIMIT, Failure, Network, Pod, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZE_MAX = 25 << 20


class Image:
    """Built from conf/container/Containerfile; its storage is a folder of its own."""

    def __init__(self, folder, tree):
        self.storage = ["buildah", "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
        self.call("bud", "--isolation", "chroot", "--quiet", "--tag", "localhost/dlaunch",
                  "--file", os.path.join(ROOT, "conf/container/Containerfile"), os.path.dirname(tree))
        config = json.loads(self.call("inspect", "--type", "image", "localhost/dlaunch"))["OCIv1"]["config"]
        self.user = config["User"]
        self.entrypoint = config["Entrypoint"]
        self.command = config["Cmd"]
        self.container = self.call("from", "localhost/dlaunch")
        self.root = self.call("mount", self.container)

    def call(self, *arguments):
        done = subprocess.run([*self.storage, *arguments], capture_output=True, text=True, timeout=10 * LIMIT)
        if done.returncode:
            raise Failure(f"buildah {arguments[0]}: {done.stderr}")
        return done.stdout.strip()

    def size(self):
        return sum(os.lstat(os.path.join(d, f)).st_size for d, _, names in os.walk(self.root) for f in names)

    def close(self):
        subprocess.run([*self.storage, "rm", "--all"], capture_output=True, timeout=LIMIT)


class Test:
    def __init__(self, image, network):
        self.image, self.network, self.count = image, network, 0

    def pod(self, *argv, name=None, service="train", **options):
        """As the image says it is started; workers find a shell in /bin/busybox."""
        self.count += 1
        uid, _, gid = self.image.user.partition(":")
        options.setdefault("mounts", {"/mnt/busybox": (shutil.which("busybox"), "ro")})
        return Pod(self.network, name or f"pod-{self.count}", service, self.image.root,
                   [*self.image.entrypoint, *argv], user=(int(uid), int(gid)), **options).start()

    def shell(self, script, *options):
        return self.pod(*options, "--no_python", "/mnt/busybox", "sh", "-c", "B=/mnt/busybox; " + script)

    # ----------------------------------------------------------------------------------- the tests

    def image_is_small_and_not_for_root(self):
        if self.image.user != "65532:65532" or self.image.entrypoint != ["/usr/local/bin/dlaunch"]:
            raise Failure(f"user {self.image.user}, entrypoint {self.image.entrypoint}")
        if self.image.size() > SIZE_MAX:
            raise Failure(f"{self.image.size() >> 20} MB")
        print(f"image: {self.image.size() / (1 << 20):.1f} MB")

    def image_without_arguments_prints_its_usage(self):
        pod = self.pod(*self.image.command)
        pod.ended(0)
        pod.expect("Usage: dlaunch")

    def workers_have_no_rights(self):
        pod = self.shell("$B id -u; $B touch /file || echo refused")
        pod.ended(0)
        pod.expect("65532\nrefused\n")

    def exit_status_is_the_workers(self):
        self.shell("exit 7").ended(7)
        self.pod("/nonexistent").ended(127)

    def two_pods_run_one_job(self):
        env = ["DLAUNCH_TOKEN=0123456789abcdef0123456789abcdef"]
        two = [self.pod("--nnodes", "2", "--nproc_per_node", "2", "/usr/local/lib/dlaunch/train", "--epochs", "2",
                        "--data", "/usr/local/lib/dlaunch", name=f"train-{i}", env=[*env, f"JOB_COMPLETION_INDEX={i}"])
               for i in range(2)]
        for pod in two:
            pod.ended(0)
        two[0].expect("done: 2 epochs")

    def process_1_reaps_orphans(self):
        pod = self.shell("echo ready; exec $B sleep 600")
        pod.expect("ready")
        before = len(pod.pids())
        status, said = pod.exec("/mnt/busybox", "sh", "-c", "B=/mnt/busybox; $B sleep 0.2 & $B sleep 0.1 & echo left")
        if (status, said) != (0, "left\n"):
            raise Failure(f"exec: {status} {said}")
        wait_for("the end of the orphans, zombies included", lambda: len(pod.pids()) == before)
        pod.delete()
        pod.ended(128 + 15)

    def signals_reach_workers(self):
        pod = self.shell("trap 'echo stopping; exit 3' TERM; echo ready; while :; do $B sleep 0.05; done")
        pod.expect("ready")
        pod.signal("TERM")
        pod.expect("stopping")
        pod.ended(128 + 15)

    def stubborn_worker_is_killed_within_the_grace(self):
        pod = self.shell("trap '' TERM; echo ready; while :; do $B sleep 0.05; done", "--shutdown_timeout", "1")
        pod.expect("ready")
        took = pod.delete()
        pod.ended(128 + 15)
        if took > 25:
            raise Failure(f"took {took:.1f} s")

    def killed_agent_ends_the_container(self):
        pod = self.shell("echo ready; exec $B sleep 600")
        pod.expect("ready")
        guardian = pod.pids()[0]
        agent = next(p for p in pod.pids() if parent_of(p) == guardian)
        os.kill(agent, 9)
        pod.ended(128 + 9)
        pod.expect("was killed by SIGKILL", "err")


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])


def passes(test):
    begin = time.monotonic()
    try:
        test()
    except (AssertionError, OSError, subprocess.SubprocessError, LookupError, StopIteration) as why:
        print(f"image: {test.__name__}: FAILED\n{why!r}" if not str(why) else f"image: {test.__name__}: FAILED\n{why}",
              flush=True)
        return False
    print(f"image: {test.__name__}: ok ({time.monotonic() - begin:.1f} s)", flush=True)
    return True


def main():
    why = pods.missing() or next((f"{p} is not installed" for p in ("buildah", "busybox") if not shutil.which(p)), None)
    if why:
        print(f"SKIPPED: the container image: {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="dlaunch-image.") as folder:
        tree = os.path.join(folder, "context", "root")
        os.makedirs(os.path.dirname(tree))
        subprocess.run([os.path.join(ROOT, "conf/container/make-root.sh"), sys.argv[1], tree], check=True,
                       timeout=LIMIT)
        image, network = Image(folder, tree), Network()
        try:
            test = Test(image, network)
            tests = [getattr(test, name) for name, kind in vars(Test).items()
                     if callable(kind) and name not in ("__init__", "pod", "shell")]
            failed = sum(not passes(t) for t in tests)
        finally:
            network.close()
            image.close()
    print(f"{len(tests) - failed} passed, {failed} failed")
    return bool(failed)


sys.exit(main())
