#!/usr/bin/env python3
"""Real PyTorch scripts (scripts/) under dlaunch, with the PyTorch of this interpreter."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys

from jobs import (DLAUNCH, PYTHON, Job, Skip, count, dlaunch, free_port, nodes, rounds, run_checks, script,
                  torch_version, until)

VERSION = torch_version()
if VERSION is None:
    print(f"SKIPPED: {sys.executable} has no PyTorch")
    sys.exit(0)


def at_least(*version):
    if VERSION < version:
        raise Skip("PyTorch %d.%d does not have it" % VERSION)


# ------------------------------------------------------------------------------ groups and groups' stores


def collectives_on_one_node(folder):
    out = dlaunch("--nproc_per_node", 4, script("collectives.py")).wait()
    assert count(out, "all collectives are right") == 4, out


def collectives_on_two_nodes(folder):
    text = "".join(job.wait() for job in nodes(2, "--nproc_per_node", 2, script("collectives.py")))
    assert count(text, "of 4: all collectives are right") == 4, text


def collectives_on_unequal_nodes_by_c10d(folder):
    port = free_port()
    jobs = [dlaunch("--nnodes", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{port}", "--rdzv_id", "x",
                    "--nproc_per_node", n, script("collectives.py")) for n in (1, 2)]
    text = "".join(job.wait() for job in jobs)
    assert count(text, "of 3: all collectives are right") == 3, text


def init_by_env(folder):
    assert count(dlaunch("--nproc_per_node", 2, script("init_methods.py"), "env").wait(), "ok") == 2


def init_by_tcp_at_the_master(folder):
    for form in ("tcp", "query"):
        assert count(dlaunch("--nproc_per_node", 2, script("init_methods.py"), form).wait(), "ok") == 2


def init_by_file(folder):
    out = dlaunch("--nproc_per_node", 2, script("init_methods.py"), "file", folder + "/init").wait()
    assert count(out, "ok") == 2


def init_by_tcp_at_a_port_of_the_script(folder):
    """At a port that the script chooses, rank 0 must serve; before 2.14 TORCHELASTIC_USE_AGENT_STORE prevents that."""
    store = [] if VERSION >= (2, 14) else ["--master_store", "none"]
    out = dlaunch("--nproc_per_node", 2, *store, script("init_methods.py"), "private", free_port()).wait()
    assert count(out, "ok") == 2


def stores_of_the_script(folder):
    text = "".join(job.wait() for job in nodes(2, "--nproc_per_node", 2, script("own_stores.py")))
    assert count(text, "9 stores of its own ok") == 4, text


def monitored_barrier_names_the_late_rank(folder):
    out = dlaunch("--nproc_per_node", 3, script("late.py")).wait()
    assert re.search(r"rank 0: .*(Ranks? 1 failed|[Rr]ank 1)", out), out


# -------------------------------------------------------------------------------------------- training


def final_loss(text):
    return re.search(r"final loss (\S+) world (\d+)", text).groups()


def training_is_the_same_on_one_and_two_nodes(folder):
    one = dlaunch("--nproc_per_node", 2, script("train.py"), folder + "/a.pt").wait()
    two = "".join(job.wait() for job in nodes(2, script("train.py"), folder + "/b.pt"))
    assert final_loss(one) == final_loss(two) and final_loss(one)[1] == "2", (one, two)


def training_continues_from_its_checkpoint(folder):
    whole = dlaunch("--nproc_per_node", 2, script("train.py"), folder + "/a.pt").wait()
    job = dlaunch("--nproc_per_node", 2, "--max_restarts", 1, script("train.py"), folder + "/b.pt", "--crash-at", 2)
    restarted = job.wait()
    assert "attempt 1: goes on with epoch 2" in restarted, restarted
    assert final_loss(whole) == final_loss(restarted), (whole, restarted)
    assert "the crash that was asked for" in job.text("err")


def training_continues_after_a_kill_on_two_nodes(folder):
    jobs = nodes(2, "--max_restarts", 2, script("train.py"), folder + "/a.pt", "--crash-at", 1, "--signal", 9)
    text = "".join(job.wait() for job in jobs)
    assert "attempt 1: goes on with epoch 1" in text and final_loss(text)[1] == "2", text


def data_loader_workers_end_with_the_job(folder):
    """DataLoader's workers are in the worker's session and end with it, also when it is killed."""
    mark = f"MARK={os.path.basename(folder)}"
    env = dict([mark.split("=")])
    dlaunch("--nproc_per_node", 2, script("train.py"), folder + "/a.pt", "--loaders", 2, env=env).wait()
    job = dlaunch("--nproc_per_node", 2, script("train.py"), folder + "/b.pt", "--loaders", 2, "--crash-at", 0,
                  "--signal", 9, env=env)
    job.wait(128 + 9)
    left = [p for p in os.listdir("/proc") if p.isdigit() and has_mark(p, mark)]
    assert not left, left


def has_mark(pid, mark):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return mark.encode() in f.read().split(b"\0")
    except OSError:
        return False


def sharded_training_and_checkpoint(folder):
    at_least(2, 5)
    text = "".join(job.wait() for job in nodes(2, script("sharded.py"), folder + "/saved"))
    assert count(text, "sharded training and checkpoint are right") == 2, text


# --------------------------------------------------------------------------------- errors and debugging


def recorded_error_is_reported(folder):
    job = dlaunch("--nproc_per_node", 2, "--log_dir", folder + "/logs", "--report", folder + "/report.json",
                  script("recorded.py"))
    job.wait(1)
    assert "ValueError: no such thing as a free lunch" in job.text("err"), job.everything()
    with open(folder + "/report.json") as f:
        assert "no such thing as a free lunch" in json.dumps(json.load(f))


def file_timer_restarts_a_slow_worker(folder):
    """torchrun exits with the worker that its watchdog kills; dlaunch restarts the job."""
    job = dlaunch("--nproc_per_node", 2, "--max_restarts", 1, script("watchdog.py"),
                  env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": folder})
    out = job.wait()
    assert re.search(r"timer 'slow step' of pid \d+ expired: sending SIGKILL", job.text("err")), job.everything()
    assert count(out, "rank 1: all steps in time") == 1, job.everything()
    assert not glob.glob(folder + "/watchdog_timer_*")


def error_file_reaches_an_outer_launcher(folder):
    """Each launcher's own TORCHELASTIC_ERROR_FILE, when it is itself a worker of another."""
    outer = dlaunch("--log_dir", folder + "/logs", "--no_python", DLAUNCH, "--nproc_per_node", 2, "--log_dir",
                    folder + "/inner", script("recorded.py"))
    outer.wait(1)
    (found,) = glob.glob(folder + "/logs/*/attempt_0/0/error.json")
    with open(found) as f:
        assert "no such thing as a free lunch" in f.read()


def breakpoint_reads_standard_input(folder):
    at_least(2, 0)
    job = dlaunch("--nproc_per_node", 2, script("debugged.py"), stdin=subprocess.PIPE)
    job.p.stdin.write("up\nprint('the secret is', secret)\nc\n")
    job.p.stdin.flush()
    out = job.wait()
    assert "the secret is 41" in out and count(out, "went on, sum 2") == 2, job.everything()


# ------------------------------------------------------------------------------------------ older launchers


def distributed_launch(folder):
    link = folder + "/torch.distributed.launch"
    os.symlink(DLAUNCH, link)
    out = Job(link, "--nproc_per_node", 2, script("old_style.py"), "--epochs", 3).wait()
    assert count(out, "local rank [01] epochs 3 sum 1") == 2, out


def first_program_in_two_terminals(folder):
    """Both processes started by hand, as in the tutorial; then one of them under dlaunch, the other by hand."""
    port = free_port()
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    jobs = [Job(PYTHON, script("main.py"), env={**world, "RANK": str(r)}) for r in range(2)]
    assert all("sum 2.0" in job.wait() for job in jobs)
    for ours in range(2):
        world["MASTER_PORT"] = str(free_port())
        # The command sets the worker's rank and world size. Rank 0 meets the other process at the store that
        # dlaunch serves; before 2.6 only workers of the launcher can use that, so rank 0 serves a store itself.
        served = ours == 0 and VERSION >= (2, 6)
        options = ["--master_port", world["MASTER_PORT"]] if served else ["--master_store", "none"]
        mine = [f"{k}={v}" for k, v in world.items()] + [f"RANK={ours}"]
        launched = dlaunch(*options, "env", *mine, PYTHON, script("main.py"))
        by_hand = Job(PYTHON, script("main.py"), env={**world, "RANK": str(1 - ours)})
        assert "sum 2.0" in launched.wait() and "sum 2.0" in by_hand.wait()


# ------------------------------------------------------------------------------- nodes join and leave


def elastic_nodes(folder):
    """1:3 nodes: one, then two, then three; one is killed; one joins again. Every world continues the training."""
    port = free_port()

    def start():
        return dlaunch("--nnodes", "1:3", "--elastic", "--max_restarts", 9, "--rdzv_backend", "c10d",
                       "--rdzv_endpoint", f"localhost:{port}", "--rdzv_id", "elastic",
                       "--rdzv_conf", "last_call_timeout=0.2", script("elastic.py"), folder)

    def expect(n, job):
        until(lambda: [world for world, *_ in rounds(folder)][-1:] == [n], job, f"no world of {n}")

    jobs = [start()]
    expect(1, jobs[0])
    jobs.append(start())
    expect(2, jobs[0])
    jobs.append(start())
    expect(3, jobs[0])
    jobs.pop(1).kill(signal.SIGKILL)
    expect(2, jobs[0])
    jobs.append(start())
    expect(3, jobs[0])
    open(folder + "/STOP", "w").close()
    for job in jobs:
        job.wait()
    steps = [step for *_, step in rounds(folder)]
    assert steps == sorted(set(steps)), f"a world did not go on where the last one was: {rounds(folder)}"


def hangs_are_located(folder):
    """Of an unmodified program with gloo: by its stacks, which Python up to 3.10 shows through py-spy."""
    if sys.version_info < (3, 11) and not shutil.which("py-spy", path=os.path.dirname(PYTHON) + ":" + os.environ["PATH"]):
        raise Skip("py-spy is not installed")
    for kind, does in (("sleep", "sleeps in clock_nanosleep"), ("loop", "runs"), ("stop", "is stopped"),
                       ("lock", "sleeps in futex"), ("pipe", "sleeps in write of a pipe"), ("recv", "sleeps in "),
                       ("skip", "waits in barrier ("), ("group", "waits in all_reduce ("),
                       ("interpreter", "sleeps in clock_nanosleep")):
        rank = len(does) % 4
        jobs = nodes(2, "--nproc_per_node", 2, "--hang_after", "0.5", "--on_hang", "end", script("hang.py"), kind, rank)
        for job in jobs:
            job.wait(124)
            found = re.search(r"the job hangs: rank (\d+) on .*?; ranks? .* waits? in all_reduce ", job.text("err"))
            assert found and int(found[1]) == rank, f"{kind} on rank {rank}\n" + job.everything()
            place = "recv (" if kind == "recv" else "hang (hang.py:"
            assert does in found[0] and place in found[0], found[0]


CHECKS = [
    collectives_on_one_node, collectives_on_two_nodes, collectives_on_unequal_nodes_by_c10d, init_by_env,
    init_by_tcp_at_the_master, init_by_file, init_by_tcp_at_a_port_of_the_script, stores_of_the_script,
    monitored_barrier_names_the_late_rank, training_is_the_same_on_one_and_two_nodes,
    training_continues_from_its_checkpoint, training_continues_after_a_kill_on_two_nodes, data_loader_workers_end_with_the_job,
    sharded_training_and_checkpoint, recorded_error_is_reported, file_timer_restarts_a_slow_worker, error_file_reaches_an_outer_launcher,
    breakpoint_reads_standard_input, distributed_launch, first_program_in_two_terminals, elastic_nodes,
    hangs_are_located,
]

if __name__ == "__main__":
    run_checks("PyTorch %d.%d" % VERSION, CHECKS)
