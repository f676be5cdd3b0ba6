#!/usr/bin/python3
"""libdlcoll in a job: how long dlcoll_init() takes, how soon survivors know of a dead rank, what shared memory is
worth to the training example, and what watching the workers costs. Medians; two launchers are two on this host.

    bench-job.py BUILD_DIR [RUNS [PART...]]     PART: init, kill, images, watch; all of them
    OPS="all_reduce send": the operations in which a rank is killed
"""
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from bars import bar, bar_fact, print_bars  # noqa: E402
from facts import free_port  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 11
LIMIT_S = 60
IN_JOB = f"{BUILD}/tests/bench/coll/in_job"
OPS = os.environ.get("OPS", "").split() or subprocess.check_output([IN_JOB, "operations"], text=True).split()
TRAIN = [f"{BUILD}/examples/train", "--data", os.path.join(os.path.dirname(BUILD), "examples/data")]
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("MASTER_ADDR", None)


WATCHED = ["--hang_after", "0.5", "--slow_ranks", "3"]
STEP_MS, WATCHED_S, NPROC = 20, 8, 8
# A worker whose operations are not recorded, with 8 connections: one of 8 ranks with gloo has 7.
PLAIN = ["--no-python", "/usr/bin/python3", "-c", """
import socket, time
pairs = []
with socket.create_server(("127.0.0.1", 0)) as s:
    for _ in range(4):
        pairs += [socket.create_connection(s.getsockname()), s.accept()[0]]
while True:
    time.sleep(%s)
    pairs[0].send(b"x")
    pairs[1].recv(1)
""" % (STEP_MS / 1000)]


def launched(nnodes, nproc, argv, **env):
    """What all workers have printed, under so many launchers."""
    port = str(free_port())
    nodes = [subprocess.Popen([f"{BUILD}/dlaunch", "--nnodes", str(nnodes), "--node_rank", str(i), "--master_port",
                               port, "--nproc_per_node", str(nproc), *argv], env=dict(os.environ, **env),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
             for i in range(nnodes)]
    return "".join(p.communicate(timeout=LIMIT_S)[0] for p in nodes)


def by_hand(n, argv):
    port = str(free_port())
    ranks = [subprocess.Popen(argv, env=dict(os.environ, RANK=str(r), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1",
                                             MASTER_PORT=port), stdout=subprocess.PIPE, text=True) for r in range(n)]
    return "".join(p.communicate(timeout=LIMIT_S)[0] for p in ranks)


def init_times():
    ours, hand = [], []
    for _ in range(RUNS):
        ours.append(float(launched(1, 8, [IN_JOB, "init"])) / 1e3)
        hand.append(float(by_hand(8, [IN_JOB, "init"])) / 1e3)
    print("dlcoll_init() of 8 ranks, the slowest, ms          under dlaunch  plain environment")
    print("%-50s %13.2f %18.2f" % ("", statistics.median(ours), statistics.median(hand)))
    bar("dlcoll_init(), 8 ranks, under dlaunch", statistics.median(ours), 1, " ms", 2)
    bar("dlcoll_init(), 8 ranks, plain environment", statistics.median(hand), 20, " ms")


def kill_times(tmp):
    """us of survivors, by whether they are on the dead one's node."""
    same, other, wrong = [], [], 0
    print("\nkill -9 of one of 8 ranks to the error, ms            same node       other node (two launchers of 4)")
    print("%-44s median   last     median   last" % "")
    for op in OPS:
        here, there = [], []
        for _ in range(RUNS):
            path = f"{tmp}/killed"
            with open(path, "wb") as f:
                f.write(bytes(16))
            lines = [line.split() for line in launched(2, 4, [IN_JOB, "kill", op, path]).splitlines()]
            wrong += len(lines) != 7 or any(line[2] != "1" for line in lines)
            here += [[float(line[1]) / 1e3 for line in lines if line[0] == "0"]]
            there += [[float(line[1]) / 1e3 for line in lines if line[0] == "1"]]
        row = []
        for kind, runs in ((same, here), (other, there)):
            kind += [t for run in runs for t in run]
            row += [statistics.median(t for run in runs for t in run), statistics.median(max(run) for run in runs)]
        print("  %-42s %6.2f %6.2f     %6.2f %6.2f" % (op, *row))
    bar("kill -9 to the error, same node, median", statistics.median(same), 1, " ms", 2)
    bar("kill -9 to the error, other node, median", statistics.median(other), 5, " ms", 2)
    bar_fact("every survivor names the dead rank", wrong == 0, f"{wrong} runs in which one did not")


def images():
    """images/s of the training example, 2 launchers x 4 workers."""
    print("\ntraining example, 2 launchers x 4 workers, images/s")
    ways = (("shared memory in a node, TCP between", {}), ("TCP everywhere (DLCOLL_SHM=0)", {"DLCOLL_SHM": "0"}))
    for what, env in ways:
        rates = []
        for _ in range(3):
            out = launched(2, 4, [*TRAIN, "--epochs", "12"], **env)
            rates += [int(m) for m in re.findall(r"(\d+) images/s", out)][2:]
        print("  %-42s %6d" % (what, statistics.median(rates)))


def launcher_ns(job):
    """CPU time of the launcher's processes."""
    pids = [job.pid]
    with open(f"/proc/{job.pid}/task/{job.pid}/children") as f:
        pids += map(int, f.read().split()[:1])  # the agent, whose children are the workers
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total += int(f.read().split()[0])
    return total


def workers_of(job):
    """How many workers run."""
    try:
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as f:
            agent = f.read().split()[0]
        with open(f"/proc/{agent}/task/{agent}/children") as f:
            return len(f.read().split())
    except (OSError, IndexError):
        return 0


def launcher_share(options, argv):
    """The part of the workers' time that their launcher uses."""
    job = subprocess.Popen([f"{BUILD}/dlaunch", "--nproc_per_node", str(NPROC), *options, *argv], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while workers_of(job) < NPROC and job.poll() is None:
        time.sleep(0.05)
    before, began = launcher_ns(job), time.monotonic()
    time.sleep(WATCHED_S)
    share = (launcher_ns(job) - before) / 1e9 / (time.monotonic() - began) / NPROC
    job.terminate()
    job.wait()
    return share


def watching():
    """What --hang_after and --slow_ranks cost, on and off by turns."""
    print("\nwatching for hangs and slow ranks                     off            on     difference")
    for nproc in (1, 2):
        off, on = [], []
        for _ in range(max(RUNS, 5)):
            off.append(float(launched(1, nproc, [IN_JOB, "ops", "20000"])))
            on.append(float(launched(1, nproc, [*WATCHED, IN_JOB, "ops", "20000"])))
        cost = min(on) - min(off)
        print("  all_reduce of 8 B, %d rank%s, ns %26.1f %13.1f %14.1f" % (nproc, "s"[:nproc > 1], min(off), min(on), cost))
        bar(f"watching, an operation of {nproc}", cost, 50, " ns")
    for what, argv in (("with libdlcoll", [IN_JOB, "steps", str(STEP_MS)]), ("with plain sockets", PLAIN)):
        off, on = launcher_share([], argv), launcher_share(WATCHED, argv)
        print("  the launcher's CPU, %d workers %-18s, %% %9.3f %13.3f %14.3f" % (NPROC, what, 100 * off, 100 * on, 100 * (on - off)))
        bar(f"watching {NPROC} workers {what}, part of their time", 100 * (on - off), 0.1, " %", 3)


PARTS = sys.argv[3:] or ["init", "kill", "images", "watch"]
with tempfile.TemporaryDirectory() as folder:
    if "init" in PARTS:
        init_times()
    if "kill" in PARTS:
        kill_times(folder)
    if "images" in PARTS:
        images()
    if "watch" in PARTS:
        watching()
sys.exit(print_bars())
