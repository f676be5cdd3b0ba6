#!/usr/bin/env python3
"""dlaunch in a real Slurm.

    test_slurm.py BUILD                 the tests
    test_slurm.py BUILD scancel N       N jobs, each cancelled at a random moment
    test_slurm.py BUILD start N         N times from srun to the first worker, beside plain srun
    test_slurm.py BUILD lost N          N times from the news of a lost node to the next round

TEST_FILTER=text runs the tests whose name contains it. Needs root, ip(8), Debian's slurm-wlm and munge.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "bench"))
import cluster as slurm
from bars import bar, print_bars
from cluster import Cluster, Failure

STEP = "srun -N2 --ntasks-per-node=1 "
SHOW = "worker env RANK"
REAL_CPUS = len(os.sched_getaffinity(0))


def numbered(name, count):
    return [f"{name}={i}" for i in range(count)]


# -------------------------------------------------------------------------------------------- starts

def a_launcher_on_each_node(c):
    """One task for each node: Slurm's variables say the rest."""
    c.type(f"{STEP} dlaunch --nproc_per_node 2 {SHOW}").ended(0).says(*numbered("RANK", 4))


def tasks_and_workers_are_one_too_many(c):
    """Four launchers with four workers each on a node: one line says what to leave out."""
    p = c.type(f"srun -N2 --ntasks-per-node=4 dlaunch --nproc_per_node 4 {SHOW}").ended(2)
    said = [line for line in p.text("err").splitlines() if line.startswith("dlaunch: ")]
    if len(said) != 1 or "leave out --ntasks-per-node=4" not in said[0] or p.text():
        p.fail("not the one line")
    right = said[0].split(": ", 2)[2].split("...")[0]
    c.type(f"{right[right.index('srun '):]} {SHOW}").ended(0).says(*numbered("RANK", 8))


def the_advice_is_good_in_a_script_with_tasks(c):
    """sbatch's --ntasks is in the environment of every srun of the script."""
    c.type(f"salloc -Q -N2 --ntasks=8 srun -N2 --ntasks=2 --ntasks-per-node=1 dlaunch --nproc_per_node 4 {SHOW}")
    c.commands[-1].ended(0).says(*numbered("RANK", 8))


def programs_without_dlaunch(c):
    """The tasks of a step make one world by Slurm's variables."""
    c.type("srun -N2 -n8 allreduce").ended(0).expect("8 ranks, ")


# --------------------------------------------------------------------------- without srun for each node

def salloc_without_srun(c):
    """dlaunch starts its own steps; the head is not one of the nodes."""
    p = c.type(f"salloc -Q -N2 dlaunch -N 2 --nproc_per_node 2 {SHOW} env SLURM_JOB_ID").ended(0)
    p.says(*numbered("RANK", 4)).expect("SLURM_JOB_ID=", times=4)
    c.type(f"salloc -Q -N2 dlaunch -n 4 -ppn 2 {SHOW}").ended(0).says(*numbered("RANK", 4))


def sbatch_without_srun(c):
    """The script runs on the first node, which is a node of the job; its --ntasks is in every srun's environment."""
    c.type(f"sbatch -Q -W -N2 --ntasks=8 -o log --wrap 'dlaunch --nnodes 2 --nproc_per_node 4 {SHOW}'").ended(0)
    got = c.home_file("log").splitlines()
    if sorted(line for line in got if line.startswith("RANK=")) != numbered("RANK", 8):
        raise Failure("\n".join(got))


def standard_input_and_report_of_own_steps(c):
    """Bytes arrive as they were, the report comes once."""
    with open(os.path.join(c.home, "input"), "wb") as f:
        f.write(bytes(range(256)) * 2000)
    p = c.type("cat input | salloc -Q -N2 dlaunch -N 2 sh -c '"
               "if [ $RANK = 0 ]; then cksum; : >read; exec sleep 60; fi; while [ ! -e read ]; do sleep 0.05; done; exit 3'")
    p.ended(3).says(subprocess.run("cksum", input=bytes(range(256)) * 2000, capture_output=True).stdout.decode().strip())
    if p.text("err").count(f"First failure: rank 1 on {c.nodes[1].name} exited with code 3") != 1:
        p.fail("not one report")


def too_many_nodes_are_refused(c):
    c.type("salloc -Q -N2 dlaunch -N 3 worker").ended(2).expect("-N 3: Slurm job ", "err").expect(
        " has 2 nodes", "err")
    c.type("salloc -Q -N2 dlaunch worker").ended(0).expect("--nnodes 2 runs the job on all of them", "err")


def a_killed_head_ends_its_steps(c):
    """SIGKILL to the dlaunch of an salloc: Slurm still has the allocation, and no worker is left in it."""
    p = c.type("salloc -Q -N2 sh -c 'dlaunch -N 2 worker ignore TERM append up setsid-child pause & "
               "while [ ! -e go ]; do sleep 0.05; done; kill -9 $!; "
               "while [ \"$(squeue -h -s | wc -l)\" != 0 ]; do sleep 0.05; done; echo no step'")
    slurm.wait_for("the workers", lambda: c.home_file("up").count("\n") == 2)
    open(os.path.join(c.home, "go"), "w").close()
    p.ended(0).says("no step")


# ---------------------------------------------------------------------------------- several on a node

def steps_that_overlap(c):
    """Two dlaunch steps of one job share its nodes, and dlaunchctl comes as a third one."""
    c.type(f"salloc -Q -N2 sh -c '>up; {STEP} --overlap dlaunch --nproc_per_node 2 worker append up pause & "
           f"while [ $(wc -l <up) -lt 4 ]; do sleep 0.05; done; {STEP} --overlap dlaunch {SHOW}; "
           "srun --overlap -N1 -n1 dlaunchctl status; scancel $SLURM_JOB_ID.0; wait'")
    c.commands[-1].ended(None).says("RANK=0", "RANK=1").expect(" RUNNING ")


def array_jobs(c):
    """The tasks of an array run at the same time on the same nodes."""
    c.type("sbatch -Q -N2 --ntasks-per-node=1 --array=1-3 -o log.%a --wrap "
           "'srun dlaunch --nproc_per_node 2 worker append up wait-lines 12 up env SLURM_ARRAY_TASK_ID env RANK'").ended(0)
    for task in range(1, 4):
        want = numbered("RANK", 4) + [f"SLURM_ARRAY_TASK_ID={task}"] * 4
        slurm.wait_for(f"task {task}", lambda: sorted(
            line for line in c.home_file(f"log.{task}").splitlines() if "=" in line) == want)


def heterogeneous_jobs(c):
    """Parts with different numbers of workers are one job, by srun and without it."""
    c.type("salloc -Q -N1 : -N1 sh -c 'srun dlaunch --nproc_per_node 2 worker env RANK "
           ": dlaunch --nproc_per_node 1 worker env RANK >log; dlaunch -N 2 --nproc_per_node 2 worker env RANK'")
    c.commands[-1].ended(0).says(*numbered("RANK", 4))
    if sorted(c.home_file("log").splitlines()) != numbered("RANK", 3):
        raise Failure(c.home_file("log"))


def several_jobs_on_a_node(c):
    """Ports, sockets and files of jobs that run at the same time are different ones."""
    work = "worker append up wait-lines 16 up env RANK"
    lines = [f"{STEP} dlaunch --nproc_per_node 2 {work}"] * 2 + [
        f"salloc -Q -N2 dlaunch -N 2 --nproc_per_node 2 {work}", f"srun -N2 -n4 {work}"]
    jobs = [c.type(line) for line in lines] + [c.type("srun -N2 -n4 allreduce")]
    for job in jobs[:3]:
        job.ended(0).says(*numbered("RANK", 4))
    jobs[3].ended(0)
    jobs[4].ended(0).expect("4 ranks, ")


def workers_for_the_cpus_of_the_task(c):
    """--nproc_per_node cpu counts the CPUs of the task, not those of the node."""
    workers = "dlaunch --nproc_per_node cpu " + SHOW
    for line in (f"{STEP} -c1 {workers}", f"salloc -Q -N2 -c1 dlaunch -N2 {workers[8:]}"):
        c.type(line).ended(0).expect("--nproc_per_node cpu: 1 CPU\n", "err").says("RANK=0", "RANK=1")
    c.type(f"{STEP} -c{REAL_CPUS} {workers}").ended(0).says(*numbered("RANK", 2 * REAL_CPUS))


def memory_limits_of_the_step(c):
    """The kernel kills a worker that needs more than srun --mem; the report says so, and nothing else is killed."""
    take = "/usr/bin/python3 -c \"import os; x = bytearray((300 if os.environ['RANK'] == '1' else 1) << 20); input()\""
    p = c.type(f"mkfifo wait; srun -N2 --ntasks-per-node=1 --mem=120 dlaunch --report report {take} <>wait").ended(None)
    report = json.loads(c.home_file("report") or "{}")
    first = (report.get("failures") or [{}])[0]
    if (first.get("rank"), first.get("cause")) != (1, "oom"):
        p.fail(f"not the worker that took too much: {first}")


# ------------------------------------------------------------------------------------------------- ends

PAUSE = "dlaunch --nproc_per_node 2 worker append up setsid-child pause"
CANCELS = {  # what runs, and what ends it; Slurm asks a job to stop, and kills a step with all that is in it
    "scancel of srun": (f"{STEP} {PAUSE}", "scancel -u ann"),
    "scancel of sbatch": (f"sbatch -Q -N2 -o log --wrap '{STEP} {PAUSE}'", "scancel -u ann"),
    "scancel of salloc": (f"salloc -Q -N2 dlaunch -N2 {PAUSE[8:]}", "scancel -u ann"),
    "scancel of a step": (f"{STEP} {PAUSE}", "scancel $(squeue -h -s -o %i)"),
    "SIGTERM to srun": (f"{STEP} {PAUSE} & echo $! >pid; wait", "kill -TERM $(cat pid)"),
}


def cancel_at_random(c, trials, seed):
    """Nothing is left, whenever it comes. (It comes again until it is heard: srun misses it at some moments.)"""
    chance = random.Random(seed)
    for i in range(trials):
        name = list(CANCELS)[i % len(CANCELS)]
        line, cancel = CANCELS[name]
        c.empty_home()
        p = c.type(line)
        after = chance.uniform(0, 2 if "sbatch" in name else 0.5)  # which queues the job
        time.sleep(after)  # the moment, not a wait for anything

        def over():
            c.type(f"{cancel} 2>/dev/null").ended(None)
            return p.process.poll() is not None and c.is_idle()
        try:
            slurm.wait_for(name, over)
            c.expect_clean()
        except Failure as why:
            p.fail(f"trial {i} (seed {seed}): {name} after {after:.3f} s: {why}\n{c.state()}")


def scancel_leaves_nothing(c):
    cancel_at_random(c, 20, time.time_ns())


def print_sbatch(c):
    """The script runs as it is printed, and says what it should have."""
    script = "dlaunch --print_sbatch -N 2 --nproc_per_node 2 worker env RANK env 'a b' >job.sh"
    c.type(f"{script}; sbatch -Q -W -o log job.sh").ended(0)
    got = sorted(line for line in c.home_file("log").splitlines() if line.startswith("RANK="))
    if got != numbered("RANK", 4):
        raise Failure(c.home_file("job.sh") + c.home_file("log"))
    c.type("dlaunch --print_sbatch -n 4 -ppn 2 --spares 0 worker env RANK >job.sh; sbatch -Q -W -o log job.sh").ended(0)
    c.type("dlaunch --print_sbatch -N2").ended(2).expect("no program is given", "err")
    c.type("dlaunch --print_sbatch -H n1,n2 worker").ended(2).expect("leave out -H", "err")


# ------------------------------------------------------------------------------------------- end of time

# Says that it runs; goes on from a checkpoint; writes one when it is warned.
CHECKPOINTS = """\
trap 'echo told $RANK >>log' USR2
trap 'echo saved $RANK >>saved; exit 0' USR1
echo run ${SLURM_RESTART_COUNT:-0} $RANK >>log
[ -e saved ] && exit 0
while :; do sleep 0.1; done
"""


def job_field(c, job, field):
    line = c.head.run("scontrol", "-o", "show", "job", job, user=True).stdout
    return dict(word.split("=", 1) for word in line.split() if "=" in word)[field]


def a_job_that_runs_out_of_time_is_requeued(c):
    """Slurm's own warning (--signal) is passed on; dlaunch's ends the job, which goes on after its second start."""
    c.home_write("train.sh", CHECKPOINTS)
    job = c.type("sbatch --parsable -N2 --ntasks-per-node=1 -t1 --signal=USR2@55 --open-mode=append -o out --wrap '"
                 "srun dlaunch --end_warning USR1@20 --requeue --report report sh train.sh; echo status $? >>log'")
    job = job.ended(0).text().strip()

    def has(*lines):
        return lambda: sorted(c.home_file("log").splitlines()) == sorted(lines)
    first = ["run 0 0", "run 0 1", "told 0", "told 1"]
    slurm.wait_for("Slurm's warning", has(*first), 90)
    slurm.wait_for("the requeue", lambda: job_field(c, job, "Restarts") == "1", 60)
    report = json.loads(c.home_file("report"))
    if (report["reason"], report["exit_code"]) != ("time_limit", 75):
        raise Failure(str(report))
    if sorted(c.home_file("saved").splitlines()) != ["saved 0", "saved 1"]:
        raise Failure(c.home_file("saved"))
    slurm.wait_for("the end of its first run", lambda: c.is_idle() and job_field(c, job, "JobState") == "PENDING")
    # Not in two minutes, but not in this second either, in which slurmd refuses the job that it has just ended.
    c.head.run("scontrol", "update", f"jobid={job}", "starttime=now+3")
    try:
        slurm.wait_for("its second run", lambda: "status 0" in c.home_file("log"))
    except Failure as why:
        raise Failure(f"{why}\n{c.home_file('log')}{c.home_file('out')}"
                      f"{c.head.run('scontrol', '-o', 'show', 'job', job).stdout}") from None
    said = sorted(set(c.home_file("log").splitlines()) - {"status 75"})  # which Slurm may leave it no time to say
    if said != [*first[:2], "run 1 0", "run 1 1", "status 0", *first[2:]]:
        raise Failure(c.home_file("log"))


def own_steps_end_before_their_time(c):
    """Without srun the head asks Slurm, and all of its launchers know it."""
    c.home_write("train.sh", CHECKPOINTS)
    p = c.type("salloc -Q -N2 -t1 dlaunch -N2 --end_warning USR1@55 --events events sh train.sh").ended(75)
    if sorted(c.home_file("saved").splitlines()) != ["saved 0", "saved 1"]:
        p.fail(c.home_file("saved"))
    for name in ("stop", "finish"):
        events = [e for e in map(json.loads, c.home_file("events").splitlines()) if e["name"] == name]
        if len(events) != 1 or events[0]["context"]["cause"] != "time-limit":
            p.fail(f"{name}: {events}")


def what_cannot_be_requeued_is_refused(c):
    c.type("salloc -Q -N1 dlaunch --requeue worker").ended(2).expect("none of sbatch's", "err")
    c.type("sbatch -Q -W --no-requeue -N1 -o log --wrap 'dlaunch --requeue worker'").ended(2)
    if "sbatch --requeue" not in c.home_file("log"):
        raise Failure(c.home_file("log"))
    c.type("salloc -Q -N1 dlaunch --end_warning 60 worker").ended(0).expect("no time limit", "err")


def signals_of_scancel_are_passed_on(c):
    """To each worker once, by srun and by steps of its own."""
    c.home_write("catch.sh", "trap 'echo caught $RANK; exit 0' USR1; echo >>up; while :; do sleep 0.05; done")
    for line, to in ((f"{STEP} dlaunch sh catch.sh", "$(squeue -h -o %i)"),
                     ("salloc -Q -N2 dlaunch -N2 sh catch.sh", "$(squeue -h -o %i)")):
        c.home_write("up", "")
        p = c.type(line)
        slurm.wait_for("the workers", lambda: c.home_file("up").count("\n") == 2)
        c.type(f"scancel -s USR1 {to}").ended(0)
        p.ended(0).says("caught 0", "caught 1")


# -------------------------------------------------------------------------------------------- lost nodes

ELASTIC = "dlaunch -N 2 --spares 1 --max_restarts 1 --events events"
WORK = "sh -c 'echo $(hostname) $RANK >>up; while [ ! -e go ]; do sleep 0.05; done; echo RANK=$RANK'"


def lose_a_node(c, line, silent):
    """The node of rank 1 is gone; Slurm says so, and the job goes on without it. Returns the time in seconds from the
    news of the loss until the next round."""
    p = c.type(line)
    slurm.wait_for("the workers", lambda: c.home_file("up").count("\n") == 2 or p.process.poll() is not None)
    lost = next((n for n in c.nodes if f"{n.name} 1\n" in c.home_file("up")), None)
    if not lost:
        p.fail(f"no node has rank 1: {c.home_file('up')}")
    lost.kill(silent)
    slurm.wait_for("the next round", lambda: c.home_file("up").count("\n") == 4 or p.process.poll() is not None)
    c.head.run("scontrol", "update", f"nodename={lost.name}", "state=down", "reason=lost")
    p.expect(f"Node failure on {lost.name}", "err")
    open(os.path.join(c.home, "go"), "w").close()
    p.expect("RANK=", times=2)
    if lost.name not in p.text("err").split(" was lost: ", 1)[0]:
        p.fail("the loss is not reported")
    at = {}
    for event in map(json.loads, c.home_file("events").splitlines()):
        at[event["name"]] = event["timestamp"]  # the last one of its name
    p.ended(None).says("RANK=0", "RANK=1")
    return at["ready"] - at["node-lost"]


def a_lost_node_of_a_step(c):
    return lose_a_node(c, f"srun -N3 --no-kill -K0 --ntasks-per-node=1 {ELASTIC} "
                       f"--rdzv_conf keep_alive_interval=1,keep_alive_max_attempt=4 {WORK}", silent=True)


def a_lost_node_of_an_allocation(c):
    return lose_a_node(c, f"salloc -Q -N3 --no-kill {ELASTIC} {WORK}", silent=False)


COMMON = [a_launcher_on_each_node, tasks_and_workers_are_one_too_many, the_advice_is_good_in_a_script_with_tasks,
          programs_without_dlaunch, salloc_without_srun, sbatch_without_srun, standard_input_and_report_of_own_steps,
          too_many_nodes_are_refused, a_killed_head_ends_its_steps,
          steps_that_overlap, array_jobs, heterogeneous_jobs, several_jobs_on_a_node,
          print_sbatch, own_steps_end_before_their_time, what_cannot_be_requeued_is_refused, signals_of_scancel_are_passed_on,
          a_job_that_runs_out_of_time_is_requeued, scancel_leaves_nothing]
SPARE = [a_lost_node_of_a_step, a_lost_node_of_an_allocation]
# The tests of each cluster.
GROUPS = [({"nodes": 2}, COMMON),
          ({"nodes": 2, "cpus": REAL_CPUS, "proctrack": "pgid", "task": "affinity"},
           [workers_for_the_cpus_of_the_task, scancel_leaves_nothing]),
          *([({"nodes": 2, "task": "cgroup", "ram": "yes"}, [memory_limits_of_the_step])] if slurm.limits_memory() else []),
          *(({"nodes": 3}, [test]) for test in SPARE)]

PROGRAMS = ["dlaunch", "dlaunchctl", "libdlcoll.so.0", "tests/worker", "examples/allreduce", "examples/train"]


# --------------------------------------------------------------------------------------------------- main

def run(test, c):
    begin = time.monotonic()
    c.empty_home()
    try:
        test(c)
        c.expect_clean()
    except (AssertionError, OSError, subprocess.SubprocessError, LookupError, ValueError) as why:
        print(f"slurm: {test.__name__}: FAILED\n{why or repr(why)}", flush=True)
        return False
    print(f"slurm: {test.__name__}: ok ({time.monotonic() - begin:.1f} s)", flush=True)
    return True


def run_group(programs, conf, tests, results):
    c = None
    try:
        for test in tests:
            c = c or Cluster(programs=programs, **conf)
            results.append(run(test, c))
            if not results[-1]:  # what it has left is not the next one's
                c.close()
                c = None
    finally:
        if c:
            c.close()


def measure_scancel(programs, n):
    c = Cluster(2, programs)
    try:
        begin = time.monotonic()
        cancel_at_random(c, n, time.time_ns())
        print(f"slurm: {n} jobs cancelled at random moments left nothing ({time.monotonic() - begin:.0f} s)")
    finally:
        c.close()


def first_worker_ms(c, line):
    """From the shell's line before srun to the first line of the first worker."""
    p = c.type(f"date +%s%N; {line} date +%s%N").ended(0)
    begin, *workers = map(int, p.text().split())
    return (min(workers) - begin) / 1e6


START_BAR_MS = 30  # what dlaunch may take


def measure_start(programs, n):
    """One worker on each of two nodes, by turns."""
    lines = {"srun": "srun -N2 --ntasks-per-node=1", "srun dlaunch": "srun -N2 --ntasks-per-node=1 dlaunch --quiet"}
    c = Cluster(2, programs)
    try:
        for line in lines.values():  # makes the job token
            first_worker_ms(c, line)
        ms = {name: [] for name in lines}
        for _ in range(n):
            for name, line in lines.items():
                ms[name].append(first_worker_ms(c, line))
    finally:
        c.close()
    for name, all_ms in ms.items():
        print(f"slurm: {name}: {statistics.median(all_ms):.1f} ms to the first worker (median of {n}, "
              f"{min(all_ms):.1f} to {max(all_ms):.1f})")
    more = statistics.median(ms["srun dlaunch"]) - statistics.median(ms["srun"])
    print(f"slurm: dlaunch takes {more:.1f} ms more than plain srun; load {os.getloadavg()[0]:.1f}", flush=True)
    bar("from srun to the first worker, beside plain srun", more, START_BAR_MS, " ms")


LOST_BAR_MS = 1000


def measure_lost(programs, n):
    for i in range(n):
        for test in SPARE:
            c = Cluster(3, programs)
            try:
                ms = test(c) * 1000
            finally:
                c.close()
            print(f"slurm: {test.__name__} {i + 1}: the next round {ms:.0f} ms after the news", flush=True)
            bar(f"{test.__name__} {i + 1}: the next round after the news", ms, LOST_BAR_MS, " ms", 0)


MEASUREMENTS = {"scancel": measure_scancel, "start": measure_start, "lost": measure_lost}


def main():
    why = slurm.missing()
    if why:
        print(f"SKIPPED: Slurm: {why}")
        return 0
    programs = [os.path.join(sys.argv[1], p) for p in PROGRAMS]
    for what, n in zip(sys.argv[2::2], sys.argv[3::2]):
        MEASUREMENTS[what](programs, int(n))
    if len(sys.argv) > 2:
        return print_bars()
    results = []
    for conf, tests in GROUPS:
        run_group(programs, conf, [t for t in tests if os.environ.get("TEST_FILTER", "") in t.__name__], results)
    failed = results.count(False)
    print(f"{len(results) - failed} passed, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
