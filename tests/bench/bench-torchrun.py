#!/usr/bin/env python3
"""dlaunch and torchrun side by side, in one run, with scripts of PyTorch users: what each of them waits for.

    bench-torchrun.py BUILD [RUNS]

With the PyTorch of this interpreter. Medians of interleaved runs, milliseconds; a launcher of which nothing
comes in PATIENCE_S seconds is not asked again. Exits with 1 when a bar is missed.
"""
import os
import signal
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["BUILD"] = sys.argv[1] if len(sys.argv) > 1 else "build"
sys.path.insert(0, os.path.join(HERE, "../torch"))

from bars import bar, bar_fact, print_bars  # noqa: E402
from hosts import Hosts  # noqa: E402
from jobs import DLAUNCH, PYTHON, Job, Skip, free_port, torch_version  # noqa: E402

RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
PATIENCE_S = 20
VERSION = torch_version()
if VERSION is None:
    print(f"SKIPPED: {PYTHON} has no PyTorch")
    sys.exit(0)
TORCHRUN = [PYTHON] + ([HERE + "/../torch/torchrun_debian.py"] if VERSION < (2,) else ["-m", "torch.distributed.run"])
LAUNCHERS = {"dlaunch": [DLAUNCH], "torchrun": [*TORCHRUN, "--monitor_interval", "0.1"]}

FIRST_LINE = 'import os\nprint(os.environ["RANK"], flush=True)\n'
GLOO = 'import os\nimport torch.distributed as dist\ndist.init_process_group("gloo")\nprint(dist.get_rank(), flush=True)\n'
GLOO += "dist.barrier()\nos._exit(0)\n"
# Writes when it starts; in its first start the last rank kills itself when all are there, the others wait.
STARTS = '''
import os, signal, sys, time
def note(what):
    with open(sys.argv[1], "a") as f:
        f.write("%s %.6f\\n" % (what, time.monotonic()))
note("start")
def starts():
    return sum(line.startswith("start") for line in open(sys.argv[1]))
def stay():  # torchrun leaves its workers behind when it is killed: they end with the folder
    while os.path.exists(sys.argv[1]):
        time.sleep(0.1)
world = int(sys.argv[2])
if starts() <= world:
    while starts() < world:
        time.sleep(0.001)
    if sys.argv[3] == "crash" and int(os.environ["RANK"]) == world - 1:
        note("kill")
        os.kill(os.getpid(), signal.SIGKILL)
    stay()
if sys.argv[3] == "stay":
    stay()
'''


def times(path, what):
    try:
        with open(path) as f:
            return [float(line.split()[1]) for line in f if line.startswith(what + " ")]
    except FileNotFoundError:
        return []


def wait_for(fact):
    end = time.monotonic() + PATIENCE_S
    while not fact():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def first_line(launcher, folder, program):
    start = time.monotonic()
    job = Job(*launcher, "--nproc_per_node", 2, program)
    assert wait_for(lambda: job.text()), job.everything()
    took = time.monotonic() - start
    job.wait()
    return took


def crash(launcher, folder, program):
    """From a worker's death to its successor's first instruction, one launcher."""
    log = folder + "/log"
    job = Job(*launcher, "--nproc_per_node", 2, "--max_restarts", 1, program, log, 2, "crash")
    job.wait()
    return times(log, "start")[2] - times(log, "kill")[0]


def launcher_dies(launcher, folder, program):
    """1:2 nodes; kill -9 of one launcher and its workers: until the survivor's workers start again."""
    log, port = folder + "/log", free_port()
    jobs = [Job(*launcher, "--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{port}",
                "--rdzv_id", "x", "--max_restarts", 3, "--rdzv_conf", "last_call_timeout=1", program, log, 2, "stay")
            for _ in range(2)]
    # The node that does not host the rendezvous is the one that came second.
    assert wait_for(lambda: len(times(log, "start")) == 2), jobs[0].everything() + jobs[1].everything()
    time.sleep(0.5)
    start = time.monotonic()
    hosting = [listens(job, port) for job in jobs]
    jobs[1 if hosting[0] else 0].kill(signal.SIGKILL)
    again = wait_for(lambda: len(times(log, "start")) > 2)
    return times(log, "start")[2] - start if again else None


def listens(job, port):
    pids = [job.p.pid] + [int(k) for k in open(f"/proc/{job.p.pid}/task/{job.p.pid}/children").read().split()]
    inodes = {line.split()[9] for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]
              if int(line.split()[1].split(":")[1], 16) == port and line.split()[3] == "0A"}
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if link[8:-1] in inodes and link.startswith("socket:"):
                return True
    return False


def host_is_cut_off(launcher, folder, program):
    """1:2 hosts (network namespaces); heartbeats every 0.25 s, eight missed are a loss (torchrun: every second,
    two missed: it takes whole seconds)."""
    log = folder + "/log"
    every, missed = (0.25, 8) if launcher[0] == DLAUNCH else (1, 2)
    conf = f"last_call_timeout=1,keep_alive_interval={every},keep_alive_max_attempt={missed}"
    with Hosts(2) as hosts:
        jobs = [hosts.start(i, *launcher, "--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "node0",
                            "--rdzv_id", "x", "--max_restarts", 3, "--rdzv_conf", conf, program, log, 2, "stay")
                for i in range(2)]
        assert wait_for(lambda: len(times(log, "start")) == 2), jobs[0].everything() + jobs[1].everything()
        time.sleep(0.5)
        start = time.monotonic()
        hosts.cut(1)
        again = wait_for(lambda: len(times(log, "start")) > 2)
        return times(log, "start")[2] - start if again else None


# The last column: dlaunch's bar in milliseconds, or None: no more than torchrun.
ROWS = [
    ("first line of two workers", first_line, FIRST_LINE, None),
    ("first line after init_process_group (gloo)", first_line, GLOO, None),
    ("a worker killed -> its successor", crash, STARTS, None),
    ("a launcher killed -> the survivor's workers", launcher_dies, STARTS, 100),
    ("a host cut off -> the survivor's workers", host_is_cut_off, STARTS, 2000),
]


def measure(function, launcher, program):
    with tempfile.TemporaryDirectory(prefix="dlaunch-torch-") as folder:
        with open(folder + "/script.py", "w") as f:
            f.write(program)
        try:
            return function(launcher, folder, folder + "/script.py")
        finally:
            Job.end_all()


def main():
    print(f"PyTorch {VERSION[0]}.{VERSION[1]}; medians of {RUNS} interleaved runs, ms\n")
    print("%-48s" % "" + "".join("%22s" % name for name in LAUNCHERS))
    for label, function, program, limit in ROWS:
        took = {name: [] for name in LAUNCHERS}
        try:
            for _ in range(RUNS):
                for name, launcher in LAUNCHERS.items():
                    if None not in took[name]:
                        took[name].append(measure(function, launcher, program))
        except Skip as why:
            print(f"SKIPPED: {label}: {why}")
            continue
        ms = {name: None if None in t else statistics.median(t) * 1e3 for name, t in took.items()}
        show = lambda t: "not within %d s" % PATIENCE_S if t is None else "%.1f" % t
        print("%-48s" % label + "".join("%22s" % show(t) for t in ms.values()), flush=True)
        limit = limit or ms["torchrun"]
        if ms["dlaunch"] is None or limit is None:
            bar_fact(label, ms["dlaunch"] is not None, show(ms["dlaunch"]))
        else:
            bar(label, ms["dlaunch"], limit, " ms")
    sys.exit(print_bars())


main()
