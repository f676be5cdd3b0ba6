#!/usr/bin/python3
"""Unmodified MPI programs under dlaunch: those of Debian's MPICH and Open MPI on one node and on two, and a client of
PMI-2.

    test_mpi.py BUILD [CASE...]
"""
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

from death import kill_a_rank

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from facts import free_port  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(sys.argv[1])
DLAUNCH = BUILD + "/dlaunch"
PROGRAMS = BUILD + "/tests/mpi"
LIMIT_S = 120
MANY_LIMIT_S = 400  # of ranks that share a CPU with 31 others, all of which poll


def build(command):
    subprocess.run(command, check=True, cwd=os.path.dirname(os.path.dirname(HERE)))


def compile_all():
    os.makedirs(PROGRAMS, exist_ok=True)
    for cc, source, name, libs in [("mpicc.mpich", "program.c", "mpich", ["-lm"]),
                                   ("mpicc.openmpi", "program.c", "openmpi", ["-lm"]),
                                   ("cc", "program_pmi2.c", "pmi2", ["-lpmi2"])]:
        build([cc, "-O2", "-Wall", "-Wextra", "-Werror", "-o", f"{PROGRAMS}/{name}", f"{HERE}/{source}", *libs])
    headers = subprocess.run(["pkg-config", "--cflags", "pmix"], stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    # The declarations of PMIx in dlaunch are those of its header.
    build(["cc", "-I.", *headers, "-o", f"{PROGRAMS}/pmix_abi", f"{HERE}/pmix_abi.c"])
    build(["cc", "-O2", *headers, "-o", f"{PROGRAMS}/pmix", f"{HERE}/program_pmix.c", "-l:libpmix.so.2"])


class Hosts:
    """Two network namespaces with a cable between them."""
    ADDR = "10.77.0.%d"

    def __enter__(self):
        self.names = [f"mpi{os.getpid()}.{i}" for i in range(2)]
        for n in self.names:
            subprocess.run(["ip", "netns", "add", n], check=True)
        subprocess.run(["ip", "link", "add", "eth0", "netns", self.names[0], "type", "veth", "peer", "name", "eth0", "netns",
                        self.names[1]], check=True)
        for i, n in enumerate(self.names):
            for command in (f"addr add {self.ADDR % (i + 1)}/24 dev eth0", "link set eth0 up", "link set lo up"):
                subprocess.run(["ip", "-n", n, *command.split()], check=True)
        return self

    def __exit__(self, *how):
        for n in self.names:
            subprocess.run(["ip", "netns", "delete", n], check=True)

    def enter(self, i):
        return ["ip", "netns", "exec", self.names[i], "unshare", "--uts", "sh", "-c", f'hostname host{i}; exec "$@"', "sh"]


class Job:
    """Launchers that form one job; `workers` says how many ranks each has."""

    def __init__(self, workers, program, *args, options=(), env=None, hosts=None, second=None):
        port = free_port()
        self.launchers = []
        for rank, nproc in enumerate(workers):
            where = ["--nnodes", str(len(workers)), "--node_rank", str(rank), "--master_port", str(port)]
            if hosts:
                where += ["--master_addr", Hosts.ADDR % 1]
            if second and rank:
                program = second
            self.launchers.append(subprocess.Popen(
                [*(hosts.enter(rank) if hosts else []), DLAUNCH, *(where if len(workers) > 1 else []), "--nproc_per_node", str(nproc), *options,
                 program if "/" in program else f"{PROGRAMS}/{program}", *args],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}))

    def end(self, same=True, limit_s=LIMIT_S):
        """Waits; returns the exit status, which is the same on all nodes, all output, and all reports."""
        end = time.monotonic() + limit_s
        out, err, codes = "", "", set()
        try:
            for p in self.launchers:
                o, e = p.communicate(timeout=max(1, end - time.monotonic()))
                out, err = out + o, err + e
                codes.add(p.returncode)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {limit_s} s\n{out}\n{err}") from None
        finally:
            for p in self.launchers:
                if p.poll() is None:
                    p.kill()
                    p.wait()
        assert len(codes) == 1 or not same, (codes, err)
        return codes.pop(), out, err


MPIS = ["mpich", "openmpi"]
LAYOUTS = [[1], [4], [2, 2], [1, 3]]


def said_hello(out, workers):
    want = sorted(f"rank {r} of {sum(workers)}, {n} on its node"
                  for i, n in enumerate(workers) for r in range(sum(workers[:i]), sum(workers[:i]) + n))
    assert sorted(out.splitlines()) == want, out


def good(program, workers, *args, limit_s=LIMIT_S, **more):
    code, out, err = Job(workers, program, *args, **more).end(limit_s=limit_s)
    assert code == 0, f"{program}, {workers}, {args}: exit status {code}\n{out}\n{err}"
    said_hello(out, workers)
    assert "System call" not in err, err  # each rank finds its own files when it ends
    return err


def leftovers():
    """Folders and shared memory that Open MPI and PMIx make."""
    return {f for d in ("/dev/shm", "/tmp") for f in os.listdir(d)
            if f.startswith(("dlaunch_pmix_", "vader_segment", "ompi.", "pmix"))}


# ------------------------------------------------------------------------------------------- cases

def case_hello():
    for program, how in [("mpich", "PMI (libmpich.so.12, MPICH)"), ("openmpi", "PMIx (libmpi.so.40, Open MPI)")]:
        for workers in LAYOUTS:
            good(program, workers, "hello")
        err = good(program, [2], "hello", options=["--verbose"])
        assert err.count(f"the ranks find each other by {how}") == 1, err


def case_ring():
    for program in MPIS:
        for workers in LAYOUTS:
            good(program, workers, "ring")


def case_collectives():
    for program in MPIS:
        for workers in LAYOUTS:
            good(program, workers, "collectives")


def case_jacobi():
    for program in MPIS:
        for workers in LAYOUTS:
            good(program, workers, "jacobi")


def case_two_hosts():
    with Hosts() as hosts:
        for program in MPIS:
            for mode in ("ring", "jacobi"):
                good(program, [2, 2], mode, hosts=hosts)


def case_many_ranks():
    for program in MPIS:
        good(program, [32, 32], "hello", limit_s=MANY_LIMIT_S)


def case_a_script():
    with tempfile.TemporaryDirectory() as d:
        script = d + "/run.sh"
        with open(script, "w") as f:
            f.write(f"#!/bin/sh\nexec {PROGRAMS}/mpich ring\n")
        os.chmod(script, 0o755)
        code, out, err = Job([2, 2], script, options=["--mpi", "pmi"]).end()
        assert code == 0, err
        said_hello(out, [2, 2])


def case_variables_of_another_starter():
    good("mpich", [2], "hello", env={"PMI_RANK": "7", "PMI_SIZE": "9", "PMI_FD": "99", "PMI_PORT": "nowhere:1"})
    good("openmpi", [2], "hello", env={"PMIX_RANK": "7", "PMIX_NAMESPACE": "other", "PMIX_SERVER_URI41": "pmix;tcp4://127.0.0.1:1"})


def case_abort():
    for program in MPIS:
        for workers, code in [([3], 7), ([2, 2], 77), ([2, 1], 256 + 5)]:
            status, out, err = Job(workers, program, "abort", str(code)).end()
            assert status == code & 255, (program, status, err)
            reports = len(re.findall(rf"First failure: rank 1 on \S+ called MPI_Abort with code {code}\n", err))
            assert reports == len(workers), (program, err)
        status, out, err = Job([2], program, "abort", "0").end()
        assert status == 1, (program, status, err)  # a failed job never ends with 0


def case_exits_that_others_would_wait_for():
    for program in MPIS:
        for mode, text in [("leave", "exited with code 0 after MPI_Init, without MPI_Finalize"),
                           ("absent", "(exited with code 0 without MPI_Init, which other ranks have called|"
                                      "called MPI_Init, and rank 1 had exited without it)")]:
            status, out, err = Job([3], program, mode).end()
            assert status == 1 and re.search(rf"First failure: rank [0-2] on \S+ {text}\n", err), (program, mode, status, err)


def case_ranks_that_die_while_they_connect():
    before = leftovers()
    for _ in range(25):
        status, out, err = Job([3], "openmpi", "absent").end()
        assert status == 1, (status, err)
    assert leftovers() <= before, leftovers() - before


def case_a_dead_rank():
    for program, workers in itertools.product(MPIS, ([4], [2, 2])):
        before = leftovers()
        job = Job(workers, program, "wait")
        ms = kill_a_rank(job.launchers, 4, LIMIT_S) * 1000
        status, out, err = job.end()
        assert status == 128 + 9, (status, err)
        assert len(re.findall(r"First failure: rank 3 on \S+ was killed by SIGKILL", err)) == len(workers), err
        assert leftovers() <= before, leftovers() - before
        print(f"  {program}: killed rank on {len(workers)} node(s): every rank had ended after {ms:.1f} ms")


def case_restart():
    for program, workers in itertools.product(MPIS, ([3], [2, 2])):
        code, out, err = Job(workers, program, "restart", options=["--max_restarts", "1"]).end()
        assert code == 0, (code, err)
        said_hello("".join(re.findall(r"^rank .*\n", out, re.M)), workers)  # UCX may complain in the first round


def case_spawn():
    for program, n in [("mpich", 2), ("openmpi", 1)]:  # an error for the program; this MPICH does not even ask
        code, out, err = Job([n], program, "spawn").end()
        assert code == 0, (program, code, err)
        assert program == "mpich" or "asks for further processes (MPI_Comm_spawn): refused" in err, (program, err)
    status, out, err = Job([2], "openmpi", "spawn").end()
    assert status == 1 and "called MPI_Comm_spawn, which was refused" in err, (status, err)


def case_pmi2():
    for workers in LAYOUTS:
        code, out, err = Job(workers, "pmi2", options=["--mpi", "pmi"]).end()
        assert code == 0, (workers, code, err)
        n = sum(workers)
        assert sorted(out.splitlines()) == sorted(f"rank {r} of {n} by PMI-2" for r in range(n)), out


def case_pmix():
    for workers in LAYOUTS:
        code, out, err = Job(workers, "pmix").end()
        assert code == 0, (workers, code, err)
        n = sum(workers)
        assert sorted(out.splitlines()) == sorted(f"rank {r} of {n} by PMIx" for r in range(n)), out


def case_no_libpmix():
    # A library of another name in its place: the message says what to install.
    with tempfile.TemporaryDirectory() as d:
        open(d + "/libpmix.so.2", "w").close()
        status, out, err = Job([2], "/bin/true", options=["--mpi", "pmix"], env={"LD_LIBRARY_PATH": d}).end()
    assert status != 0 and "libpmix.so.2: file too short): install libpmix2" in err, (status, err)


def case_an_abort_is_read_before_the_exit():
    # PMI2_Abort() of this library exits at once.
    for _ in range(40):
        status, out, err = Job([2, 2], "pmi2", "abort", options=["--mpi", "pmi"]).end()
        assert status == 1 and err.count("First failure: rank 1 on ") == 2, (status, err)
        assert err.count("called MPI_Abort: enough\n") >= 2, (status, err)


def case_without_a_server():
    for program, more in [("mpich", {}), ("openmpi", {"OMPI_MCA_btl": "self,tcp"})]: # why --mpi is not off
        code, out, err = Job([2], program, options=["--mpi", "off"], env=more).end()
        assert code == 0 and out.splitlines() == ["rank 0 of 1, 1 on its node"] * 2, (code, out, err)


def case_the_same_mpi_on_all_nodes():
    code, out, err = Job([1, 1], "mpich", options=["--rdzv_conf", "join_timeout=5"], second="openmpi").end(same=False)
    assert "this job has --mpi " in err and not out, (code, out, err)


def case_behind_another_library():
    # The program needs a library of its own, which needs the MPI.
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/main.c", "w") as f:
            f.write("int run(int argc, char **argv);\nint main(int argc, char **argv) { return run(argc, argv); }\n")
        for mpi in MPIS:
            build([f"mpicc.{mpi}", "-shared", "-fPIC", "-Dmain=run", "-o", f"{d}/libfoo.so", f"{HERE}/program.c", "-lm"])
            build(["cc", "-o", f"{d}/program", d + "/main.c", f"-L{d}", "-lfoo", "-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN"])
            for workers in ([2], [1, 1]):
                good(f"{d}/program", workers, "hello")


def case_several_programs():
    for program, workers in itertools.product(MPIS, ([3], [2, 1])):
        path = f"{PROGRAMS}/{program}"
        code, out, err = Job(workers, program, "appnum", ":", "-n", "2", path, "appnum",
                             options=["-n", "1"] + (["--nnodes", "2"] if len(workers) > 1 else [])).end()
        assert code == 0, (code, err)
        assert sorted(re.findall(r"rank \d runs .*", out)) == [f"rank {r} runs program {min(r, 1)}" for r in range(3)], out
    code, out, err = Job([2], "pmi2", ":", "-n", "1", f"{PROGRAMS}/pmi2", options=["--mpi", "pmi", "-n", "1"]).end()
    assert code == 0, (code, out, err)
    status, out, err = Job([2], "mpich", "hello", ":", "-n", "1", f"{PROGRAMS}/openmpi", options=["-n", "1"]).end()
    assert status == 2 and "their ranks cannot find each other" in err and not out, (status, out, err)


def case_one_rank_cannot_restart_alone():
    status, out, err = Job([2], "mpich", options=["--restart_policy", "worker"]).end()
    assert status == 2 and "one rank of an MPI program (libmpich.so.12, MPICH) cannot be started again alone" in err, err


def case_plain_programs_get_nothing():
    code, out, err = Job([2], "/bin/sh", "-c", "env; ls -l /proc/$$/fd").end()
    assert code == 0 and "PMI_" not in out and "MPI_LOCAL" not in out, out


def main():
    compile_all()
    names = sys.argv[2:] or [n[5:] for n in globals() if n.startswith("case_")]
    failed = []
    for name in names:
        begin = time.monotonic()
        try:
            globals()["case_" + name]()
            print(f"ok      {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Exception:
            traceback.print_exc()
            print(f"FAILED  {name}", flush=True)
            failed.append(name)
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


main()
