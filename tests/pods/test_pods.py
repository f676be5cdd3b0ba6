#!/usr/bin/env python3
"""Jobs in pods: what conf/kubernetes asks for, and clusters that are less than kind.

    test_pods.py BUILD            the tests
    test_pods.py BUILD recovery   from a worker's death to the next round, so often: 20

Needs root, runc, ip(8), a static busybox, PyYAML.
"""
import errno
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import manifests
import pods
from pods import LIMIT, Failure, Network, Pod, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DLAUNCH, EXAMPLES = "/usr/local/bin/dlaunch", "/usr/local/lib/dlaunch"
TOKEN = "DLAUNCH_TOKEN=00112233445566778899aabbccddeeff"
B = "B=/mnt/busybox; "


class Cluster:
    """One network with a shared file tree for all pods; every test has its own."""

    def __init__(self, tree, build):
        self.tree, self.build, self.network = tree, build, Network()
        self.shared = os.path.join(self.network.folder, "shared")
        os.mkdir(self.shared)
        os.chmod(self.shared, 0o777)
        self.mounts = {"/mnt/busybox": (shutil.which("busybox"), "ro"), "/mnt/shared": (self.shared, "rw"),
                       "/mnt/stamp": (os.path.join(os.path.dirname(tree), "stamp"), "ro")}

    def close(self):
        self.network.close()

    def pod(self, name, argv, env=(), service="train", **options):
        return Pod(self.network, name, service, self.tree, argv, env=env, mounts=self.mounts, **options)

    def job(self, n, *argv, env=(), **options):
        """n pods of an Indexed Job, started."""
        made = [self.pod(f"train-{i}", [DLAUNCH, "--nnodes", str(n), "--nproc_per_node", "2", *argv],
                         env=[f"JOB_COMPLETION_INDEX={i}", TOKEN, *env], **options) for i in range(n)]
        return [pod.start() for pod in made]

    def shell(self, n, script, *options, **settings):
        return self.job(n, *options, "--no_python", "/mnt/busybox", "sh", "-c", B + script, **settings)

    def of_manifest(self, name, argv=None):
        made = []
        for p in manifests.KINDS[name](manifests.load(os.path.join(ROOT, "conf/kubernetes", name))):
            container = p.pop("container")
            made.append(self.pod(p.pop("name"), argv(p.pop("argv")) if argv else p.pop("argv"), p.pop("env"), **p))
            made[-1].probe = container["readinessProbe"]["exec"]["command"]
        return made


def all_end(job, status=0):
    for pod in job:
        pod.ended(status)


def worker_of(pod, rank):
    """The process of a worker, numbered as here."""
    for pid in pod.pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if f"RANK={rank}".encode() in f.read().split(b"\0"):
                    return pid
        except OSError:
            pass
    return None


def stamps(cluster):
    try:
        with open(os.path.join(cluster.shared, "stamps")) as f:
            return [line.split() for line in f.read().splitlines()]
    except FileNotFoundError:
        return []


# ---------------------------------------------------------------------------------------- manifests

def test_manifest(cluster, name):
    job = cluster.of_manifest(name)
    for pod in job:
        pod.start()
    all_end(job)
    job[0].expect("done: 20 epochs")


def manifest_tests():
    def test_of(name):
        def test(cluster):
            test_manifest(cluster, name)
        test.__name__ = name
        return test
    return [test_of(name) for name in manifests.KINDS]


def readiness_probe(cluster):
    job = cluster.of_manifest("indexed-job.yaml", lambda argv: [*argv[:-2], "--epochs", "100000"])
    job[0].start()
    job[0].expect("waiting for", "err")
    status, said = job[0].exec(*job[0].probe)
    if (status, said) != (1, "RENDEZVOUS\n"):
        raise Failure(f"the probe of a pod that waits: {status} {said}")
    job[1].start()
    for pod in job:
        wait_for("the probe", lambda: pod.exec(*pod.probe) == (0, "RUNNING\n"))
    job[0].delete()


def killed_container_joins_again(cluster):
    """restartPolicyRules of jobset.yaml: the kubelet starts the container again, in the same pod."""
    job = cluster.of_manifest("jobset.yaml", lambda argv: [*argv[:-2], "--epochs", "60", "--checkpoint", "/tmp/c"])
    for pod in job:
        pod.start()
    job[0].expect("epoch ")
    job[1].signal("KILL")
    job[1].ended(137)
    job[1].start()
    all_end(job)
    job[0].expect("done: 60 epochs")


# ----------------------------------------------------------------------------------- hostile settings

SETTINGS = {
    "read_only_root_no_tmp_no_home_other_uid": {"tmp": False, "user": (1234567890, 0), "read_only": True, "home": None},
    "home_that_is_not_there": {"home": "/home/nobody", "user": (1234567890, 1234567890)},
    "root_without_rights": {"user": (0, 0)},
    "shm_of_64_mb": {"shm": 64 << 20},
    "no_shm": {"shm": 0},
    "clone3_eperm": {"refuse": {"clone3": errno.EPERM}},
    "clone3_enosys": {"refuse": {"clone3": errno.ENOSYS}},
    "old_profile": {"refuse": {c: errno.EPERM for c in ("clone3", "faccessat2", "close_range", "pidfd_open",
                                                        "process_vm_readv", "ptrace", "io_uring_setup")}},
    "everything_at_once": {"tmp": False, "user": (1234567890, 0), "read_only": True, "home": None, "shm": 0,
                           "log": False, "refuse": {"clone3": errno.ENOSYS}},
}


def setting_tests():
    def test_of(name, options):
        def test(cluster):
            """The job works, and a worker that dies is restarted."""
            job = cluster.job(2, "--max_restarts", "1", f"{EXAMPLES}/train", "--data", EXAMPLES, "--epochs", "3",
                              "--checkpoint", "/mnt/shared/checkpoint", "--crash-rank", "2", "--crash-epoch", "2",
                              **options)
            all_end(job)
            job[0].expect("done: 3 epochs")
            job[1].expect("restart 1 of 1", "err")
        test.__name__ = name
        return test
    return [test_of(name, options) for name, options in SETTINGS.items()]


def three_pods(cluster):
    job = cluster.job(3, "/usr/local/bin/dlcoll_perf", "all_reduce", "--max", "64K", "--iters", "3")
    all_end(job)
    job[0].expect(" 0 wrong elements")


def more_than_dev_shm(cluster):
    """66 MB between the ranks of a pod with a /dev/shm of 64 MB."""
    job = cluster.job(1, "/usr/local/bin/dlcoll_perf", "broadcast", "--min", "66M", "--max", "66M", "--iters", "1",
                      "--warmup_iters", "0")
    all_end(job)
    job[0].expect(" 0 wrong elements")


def late_dns(cluster):
    """The head's name is unknown for 3 s: NXDOMAIN, as of a pod that has no address yet."""
    head = cluster.pod("train-0", [DLAUNCH, "--nnodes", "2", f"{EXAMPLES}/hello"], [TOKEN, "JOB_COMPLETION_INDEX=0"])
    other = cluster.pod("train-1", [DLAUNCH, "--nnodes", "2", f"{EXAMPLES}/hello"], [TOKEN, "JOB_COMPLETION_INDEX=1"])
    begin = time.monotonic()
    cluster.network.publish(head, after=3)
    job = [head.start(), other.start()]
    all_end(job)
    if time.monotonic() - begin < 3:
        raise Failure("the name was not needed")
    other.expect("hello from rank 1 of 2")


# --------------------------------------------------------------------------------------- life and death

def recovery(cluster, times=1):
    """A worker is killed: the next round begins, in the same containers. Returns the times, in ms."""
    job = cluster.job(2, "--max_restarts", "1000", "--progress_time", "0", "--no_python", "/mnt/stamp",
                      "/mnt/shared/stamps", "/mnt/second")

    def ones():
        return [p.pids()[0] for p in job]
    wait_for("the first round", lambda: len(stamps(cluster)) == 4)
    before, took = ones(), []
    for n in range(times):
        victim = wait_for("rank 3", lambda: worker_of(job[1], 3))
        begin = time.monotonic_ns()
        os.kill(victim, 9)
        wait_for("the next round", lambda: len(stamps(cluster)) == 4 * (n + 2))
        took.append((max(int(s[3]) for s in stamps(cluster)[4 * (n + 1):]) - begin) / 1e6)
    if ones() != before:
        raise Failure("a container was restarted")
    job[0].delete()
    return took


def deleted_pod_ends_within_its_grace(cluster):
    """SIGTERM reaches the workers of both pods; one of each does not listen."""
    job = cluster.shell(2, 'trap "echo stopping $RANK; [ $LOCAL_RANK = 1 ] || exit" TERM; echo ready; '
                        "while :; do $B sleep 0.05; done", "--shutdown_timeout", "1")
    for pod in job:
        pod.expect("ready\nready")
    took = job[1].delete()
    job[1].ended(128 + 15)
    job[1].expect("stopping 2")
    job[0].expect("stopping 0")
    if took > 25:
        raise Failure(f"took {took:.1f} s")
    job[0].process.wait(LIMIT)
    if job[0].process.returncode == 0:
        raise Failure(f"the other pod succeeded\n{job[0].both()}")


def termination_message(cluster):
    """Every pod has the first cause, which is on the other pod for one of them; at most 4096 bytes."""
    job = cluster.shell(2, '[ $RANK != 3 ] || { echo "ValueError: too large" >&2; exit 9; }; exec $B sleep 600')
    all_end(job, 9)
    for pod in job:
        message = pod.termination_message().decode()
        if any(text not in message for text in ("First failure: rank 3 on train-1 exited with code 9",
                                                "ValueError: too large")):
            raise Failure(f"{pod.name}: {message}")


def long_termination_message_is_cut(cluster):
    line = "x" * 70
    job = cluster.shell(1, f"for i in $($B seq 100); do echo {line} >&2; done; exit 9")
    all_end(job, 9)
    message = job[0].termination_message()
    if not message.startswith(b"/mnt/busybox FAILED\n") or len(message) > 4096 or not message.endswith(b"\n"):
        raise Failure(repr(message))


def success_leaves_no_message(cluster):
    job = cluster.shell(1, "exit 0")
    all_end(job)
    if job[0].termination_message():
        raise Failure(repr(job[0].termination_message()))


# ------------------------------------------------------------------------------------- the TrainJob's status

SERVER = "trainer.kubeflow"
STATUS_PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/train/status"


class StatusServer:
    """The Trainer's, on the bridge, with a certificate by an authority of its own; a second authority is a stranger."""

    def __init__(self, cluster):
        self.log = os.path.join(cluster.shared, "requests")
        for name in ("ca", "stranger"):
            path = os.path.join(cluster.shared, name)
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                            "-nodes", "-days", "2", "-subj", f"/CN={SERVER}", "-addext", f"subjectAltName=DNS:{SERVER}",
                            "-keyout", f"{path}.key", "-out", f"{path}.crt"], check=True, capture_output=True,
                           timeout=LIMIT)
        with open(os.path.join(cluster.shared, "token"), "w") as f:
            f.write("a.b.c\n")
        cluster.network.names[f"{SERVER}.svc.cluster.local"] = ["10.88.0.1", 0]
        cluster.network.write_names()
        self.process = subprocess.Popen(
            ["nsenter", "-t", str(cluster.network.switch.pid), "-n", sys.executable, "-B",
             os.path.join(os.path.dirname(os.path.abspath(__file__)), "status_server.py"), "10.88.0.1",
             os.path.join(cluster.shared, "ca.crt"), os.path.join(cluster.shared, "ca.key"), self.log],
            stdout=subprocess.PIPE, preexec_fn=pods.die_with_parent)
        self.process.stdout.readline()

    def requests(self):
        try:
            with open(self.log) as f:
                return [json.loads(line) for line in f.read().splitlines()]
        except FileNotFoundError:
            return []

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def status_variables(ca):
    return [f"KUBEFLOW_TRAINER_SERVER_URL=https://{SERVER}:8082{STATUS_PATH}",
            f"KUBEFLOW_TRAINER_SERVER_CA_CERT=/mnt/shared/{ca}.crt", "KUBEFLOW_TRAINER_SERVER_TOKEN=/mnt/shared/token"]


def progress_of_a_trainjob(cluster):
    """Two rounds and what rank 0 writes reach the server, from the pod of rank 0; the last word is the program's."""
    server = StatusServer(cluster)
    try:
        job = cluster.shell(2, "[ $RANK != 0 ] || printf '40\\nloss 0.25\\n' > $DLAUNCH_PROGRESS_FILE; "
                            "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then [ $RANK != 3 ] || { "
                            "until [ -e /mnt/shared/go ]; do $B sleep 0.05; done; exit 9; }; exec $B sleep 600; fi; "
                            "[ $RANK != 0 ] || printf '100\\nloss 0.125\\n' > $DLAUNCH_PROGRESS_FILE",
                            "--max_restarts", "1", "--progress_file", "/tmp/progress", env=status_variables("ca"))
        first = wait_for("the first status", server.requests)[0]
        open(os.path.join(cluster.shared, "go"), "w").close()
        all_end(job)
        if first["path"] != STATUS_PATH or first["token"] != "Bearer a.b.c":
            raise Failure(repr(first))
        status = [r["body"]["trainerStatus"] for r in server.requests()]
        metrics = [{m["name"]: m["value"] for m in s["metrics"]} for s in status]
        if metrics[0]["state"] != "running" or (metrics[0]["nodes"], metrics[0]["workers"]) != ("2", "4"):
            raise Failure(repr(status))
        if status[-1].get("progressPercentage") != 100 or metrics[-1]["loss"] != "0.125" or \
                metrics[-1]["restarts"] != "1" or not status[-1]["lastUpdatedTime"].endswith("Z"):
            raise Failure(repr(status))
    finally:
        server.close()


def progress_to_a_stranger(cluster):
    """A server without the right certificate gets no token; the job does not care."""
    server = StatusServer(cluster)
    try:
        job = cluster.shell(2, "exit 0", env=status_variables("stranger"))
        all_end(job)
        job[0].expect("progress was not reported to the TrainJob: TLS: certificate of", "err")
        if server.requests():
            raise Failure(repr(server.requests()))
    finally:
        server.close()


# --------------------------------------------------------------------------------------------------- main

def passes(test, tree, build):
    begin = time.monotonic()
    cluster = Cluster(tree, build)
    try:
        result = test(cluster)
    except (AssertionError, OSError, subprocess.SubprocessError, LookupError) as why:
        print(f"pods: {test.__name__}: FAILED\n{str(why) or repr(why)}", flush=True)
        return False
    finally:
        cluster.close()
    figure = f", {result[0]:.1f} ms" if result else ""
    print(f"pods: {test.__name__}: ok ({time.monotonic() - begin:.1f} s{figure})", flush=True)
    return True


def bench(tree, build, times):
    cluster = Cluster(tree, build)
    try:
        took = sorted(recovery(cluster, times))
    finally:
        cluster.close()
    print(f"a worker of 2 pods x 2 dies, to the first instruction of the last worker of the next round, {times} times: "
          f"median {statistics.median(took):.1f} ms, worst {took[-1]:.1f} ms")


def main():
    why = pods.missing() or (None if shutil.which("busybox") else "busybox is not installed")
    if why:
        print(f"SKIPPED: jobs in pods: {why}")
        return 0
    build = os.path.abspath(sys.argv[1])
    tests = [*manifest_tests(), readiness_probe, killed_container_joins_again, *setting_tests(),
             three_pods, more_than_dev_shm, late_dns, recovery, deleted_pod_ends_within_its_grace, termination_message,
             long_termination_message_is_cut, success_leaves_no_message, progress_of_a_trainjob,
             progress_to_a_stranger]
    wanted = os.environ.get("TEST_FILTER", "")
    tests = [t for t in tests if wanted in t.__name__]
    with tempfile.TemporaryDirectory(prefix="dlaunch-image.") as folder:
        tree = os.path.join(folder, "root")
        subprocess.run([os.path.join(ROOT, "conf/container/make-root.sh"), build, tree], check=True, timeout=LIMIT)
        subprocess.run(["cc", "-static", "-O2", "-o", os.path.join(folder, "stamp"),
                        os.path.join(ROOT, "tests/bench/stamp.c")], check=True, timeout=LIMIT)
        for name in ("mnt", "proc", "sys", "dev"):
            os.makedirs(os.path.join(tree, name), exist_ok=True)
        for name in ("busybox", "stamp"):
            open(os.path.join(tree, "mnt", name), "w").close()
        os.mkdir(os.path.join(tree, "mnt", "shared"))
        for name in ("hosts", "resolv.conf"):
            open(os.path.join(tree, "etc", name), "w").close()
        if sys.argv[2:]:
            return bench(tree, build, int((sys.argv[3:] or ["20"])[0]))
        failed = sum(not passes(t, tree, build) for t in tests)
    print(f"{len(tests) - failed} passed, {failed} failed")
    return bool(failed)


sys.exit(main())
