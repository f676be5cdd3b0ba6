"""Jobs of real PyTorch scripts under dlaunch: start them, watch them, check their results."""
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../lib"))
from facts import free_port  # noqa: E402

BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(HERE, "../../build")))
DLAUNCH = BUILD + "/dlaunch"
PYTHON = sys.executable
SCRIPTS = HERE + "/scripts"
SLOW = 240  # seconds for one step: two busy CPUs, eight workers that each import PyTorch


# The environment of a program that uses this tree's backend dlcoll.
BACKEND_ENV = {"PYTHONPATH": os.path.join(HERE, "../../collectives/python"), "XDG_CACHE_HOME": BUILD + "/torch-cache",
               "DLCOLL_LIBRARY": BUILD + "/libdlcoll.so.0"}


@functools.cache
def build_backend():
    """Compiles the backend's extension for this Python and this PyTorch, once."""
    if not os.path.exists(sysconfig.get_path("include") + "/Python.h"):
        raise Skip("Python's development files are not installed")
    done = subprocess.run([PYTHON, "-m", "dlcoll.torch", "--build"], env={**os.environ, **BACKEND_ENV},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def torch_version():
    """The version, without importing PyTorch into this process."""
    code = "import torch; print(torch.__version__)"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    return tuple(int(n) for n in re.findall(r"\d+", done.stdout)[:2]) if done.returncode == 0 else None


class Job:
    """One process (a launcher, or a worker by hand) in a session of its own."""

    everyone = []

    def __init__(self, *argv, env=None, cwd=None, stdin=None):
        self.argv = [str(a) for a in argv]
        self.out = tempfile.TemporaryFile("w+", errors="replace")
        self.err = tempfile.TemporaryFile("w+", errors="replace")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "DLAUNCH_", "GLOO_", "NCCL_", "TP_"))}
        path = os.path.dirname(PYTHON) + ":" + os.environ["PATH"]
        self.p = subprocess.Popen(self.argv, env={**clean, "PATH": path, "OMP_NUM_THREADS": "1", **(env or {})}, cwd=cwd,
                                  stdin=stdin or subprocess.DEVNULL, stdout=self.out, stderr=self.err, text=True,
                                  start_new_session=True)
        Job.everyone.append(self)

    def text(self, stream="out"):
        with open(f"/proc/self/fd/{getattr(self, stream).fileno()}", errors="replace") as f:
            return f.read()

    def everything(self):
        return f"$ {' '.join(self.argv)}\n{self.text()}\n--- stderr\n{self.text('err')}"

    def wait(self, status=0, seconds=SLOW):
        try:
            self.p.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("did not end in time\n" + self.everything()) from None
        code = self.p.returncode if self.p.returncode >= 0 else 128 - self.p.returncode
        assert code == status, f"exit status {code}, not {status}\n" + self.everything()
        return self.text()

    def kill(self, signo=signal.SIGKILL):
        os.kill(self.p.pid, signo)

    @classmethod
    def end_all(cls):
        for job in cls.everyone:
            if job.p.poll() is None:
                job.p.kill()
                job.p.wait()
        cls.everyone.clear()


def until(fact, job, what):
    deadline = time.monotonic() + SLOW
    while not fact():
        assert time.monotonic() < deadline, what + "\n" + job.everything()
        time.sleep(0.01)


def rounds(folder):
    """(world size, nodes, restarts, steps of the training) of each start, as scripts/elastic.py has written them."""
    try:
        with open(folder + "/rounds") as f:
            return [tuple(int(n) for n in line.split()) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


def dlaunch(*args, **more):
    return Job(DLAUNCH, *args, **more)


def nodes(n, *args, options=None, **more):
    """n launchers on one machine, each a node; options(i) are those of one of them."""
    port = free_port()
    return [dlaunch("--nnodes", n, "--node_rank", i, "--master_port", port, *(options(i) if options else ()), *args, **more)
            for i in range(n)]


def script(name):
    return f"{SCRIPTS}/{name}"


def count(text, pattern):
    return len(re.findall(pattern, text))


class Skip(Exception):
    """Raised by a check that is impossible here, with the reason."""


def time_is_up(what):
    """Whether the time limit of run.sh is over; then the skipped checks (`what`) are printed."""
    if time.time() < float(os.environ.get("TORCH_UNTIL", "inf")):
        return False
    print(f"SKIPPED: {what}: the time limit of the tests with PyTorch is over", flush=True)
    return True


def summary(done, failed):
    print("%d%%: Checks: %d, Failures: %d, Errors: 0" % (100 * (done - failed) // max(done, 1), done, failed))
    sys.exit(1 if failed else 0)


def run_checks(name, checks):
    """Runs the functions, each in a fresh folder; one line per failure, a summary as Check prints it."""
    wanted, failed, done = os.environ.get("TEST_FILTER", ""), 0, 0
    checks = [check for check in checks if wanted in check.__name__]
    for i, check in enumerate(checks):
        if i and time_is_up(f"{check.__name__} and {len(checks) - i - 1} more"):
            break
        folder, start = tempfile.mkdtemp(prefix="dlaunch-torch-"), time.monotonic()
        try:
            done += 1
            check(folder)
            note = "ok"
        except Skip as why:
            done -= 1
            note = f"skipped: {why}"
            print(f"SKIPPED: {check.__name__}: {why}")
        except Exception:
            failed += 1
            note = "FAILED\n" + traceback.format_exc()
        finally:
            Job.end_all()
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}: {check.__name__:<50} {time.monotonic() - start:6.1f} s  {note}", flush=True)
    summary(done, failed)
