#!/usr/bin/python3
"""Unmodified MPI programs under dlaunch: those of Debian's MPICH on one node and on two, a client of PMI-2, and what is
said about programs that dlaunch cannot serve.

    test_mpi.py BUILD [CASE...]
"""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(sys.argv[1])
DLAUNCH = BUILD + "/dlaunch"
PROGRAMS = BUILD + "/tests/mpi"
LIMIT_S = 120


def compile_all():
    os.makedirs(PROGRAMS, exist_ok=True)
    for cc, source, name, libs in [("mpicc.mpich", "program.c", "mpich", ["-lm"]),
                                   ("mpicc.openmpi", "program.c", "openmpi", ["-lm"]),
                                   ("cc", "program_pmi2.c", "pmi2", ["-lpmi2"])]:
        subprocess.run([cc, "-O2", "-Wall", "-Wextra", "-Werror", "-o", f"{PROGRAMS}/{name}", f"{HERE}/{source}", *libs],
                       check=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """Launchers that form one job; `workers` says how many ranks each has."""

    def __init__(self, workers, program, *args, options=(), env=None):
        port = free_port()
        self.launchers = []
        for rank, nproc in enumerate(workers):
            where = ["--nnodes", str(len(workers)), "--node_rank", str(rank), "--master_port", str(port)]
            self.launchers.append(subprocess.Popen(
                [DLAUNCH, *(where if len(workers) > 1 else []), "--nproc_per_node", str(nproc), *options,
                 program if "/" in program else f"{PROGRAMS}/{program}", *args],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}))

    def end(self):
        """Waits; returns the exit status, which is the same on all nodes, all output, and all reports."""
        end = time.monotonic() + LIMIT_S
        out, err, codes = "", "", set()
        try:
            for p in self.launchers:
                o, e = p.communicate(timeout=max(1, end - time.monotonic()))
                out, err = out + o, err + e
                codes.add(p.returncode)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {LIMIT_S} s\n{out}\n{err}") from None
        finally:
            for p in self.launchers:
                if p.poll() is None:
                    p.kill()
                    p.wait()
        assert len(codes) == 1, (codes, err)
        return codes.pop(), out, err


LAYOUTS = [[1], [4], [2, 2], [1, 3]]


def said_hello(out, workers):
    want = sorted(f"rank {r} of {sum(workers)}, {n} on its node"
                  for i, n in enumerate(workers) for r in range(sum(workers[:i]), sum(workers[:i]) + n))
    assert sorted(out.splitlines()) == want, out


def good(workers, *args, **more):
    code, out, err = Job(workers, "mpich", *args, **more).end()
    assert code == 0, f"{workers}, {args}: exit status {code}\n{out}\n{err}"
    said_hello(out, workers)
    return err


# ------------------------------------------------------------------------------------------- cases

def case_hello():
    for workers in LAYOUTS:
        good(workers, "hello")
    err = good([2], "hello", options=["--verbose"])
    assert err.count("the ranks find each other by PMI (libmpich.so.12, MPICH)") == 1, err


def case_ring():
    for workers in LAYOUTS:
        good(workers, "ring")


def case_collectives():
    for workers in LAYOUTS:
        good(workers, "collectives")


def case_jacobi():
    for workers in LAYOUTS:
        good(workers, "jacobi")


def case_many_ranks():
    good([32, 32], "hello")


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
    good([2], "hello", env={"PMI_RANK": "7", "PMI_SIZE": "9", "PMI_FD": "99", "PMI_PORT": "nowhere:1"})


def case_abort():
    for workers, code in [([3], 7), ([2, 2], 77), ([2, 1], 256 + 5)]:
        status, out, err = Job(workers, "mpich", "abort", str(code)).end()
        assert status == code & 255, (status, err)
        reports = len(re.findall(rf"First failure: rank 1 on \S+ called MPI_Abort with code {code}\n", err))
        assert reports == len(workers), err
    status, out, err = Job([2], "mpich", "abort", "0").end()
    assert status == 1, (status, err)  # a failed job never ends with 0


def case_exits_that_others_would_wait_for():
    for mode, text in [("leave", "exited with code 0 after MPI_Init, without MPI_Finalize"),
                       ("absent", "(exited with code 0 without MPI_Init, which other ranks have called|"
                                  "called MPI_Init, and rank 1 had exited without it)")]:
        status, out, err = Job([3], "mpich", mode).end()
        assert status == 1 and re.search(rf"First failure: rank [0-2] on \S+ {text}\n", err), (mode, status, err)


def pids_of(file, n):
    end = time.monotonic() + LIMIT_S
    pids = {}
    while len(pids) < n:
        assert time.monotonic() < end, f"only {sorted(pids)} of {n} ranks have begun"
        for r in set(range(n)) - set(pids):
            try:
                text = open(f"{file}.{r}").read()
            except FileNotFoundError:
                continue
            if text.endswith("\n"):
                pids[r] = int(text)
        time.sleep(0.001)
    return pids


def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def case_a_dead_rank():
    for workers in ([4], [2, 2]):
        with tempfile.TemporaryDirectory() as d:
            job = Job(workers, "mpich", "wait", d + "/pid")
            pids = pids_of(d + "/pid", 4)
            os.kill(pids[3], signal.SIGKILL)
            begin = time.monotonic()
            while not all(gone(p) for p in pids.values()):
                assert time.monotonic() < begin + LIMIT_S, "ranks are left"
            ms = (time.monotonic() - begin) * 1000
            status, out, err = job.end()
            assert status == 128 + 9, (status, err)
            assert len(re.findall(r"First failure: rank 3 on \S+ was killed by SIGKILL", err)) == len(workers), err
            print(f"  killed rank on {len(workers)} node(s): every rank had ended after {ms:.1f} ms")


def case_restart():
    for workers in ([3], [2, 2]):
        code, out, err = Job(workers, "mpich", "restart", options=["--max_restarts", "1"]).end()
        assert code == 0, (code, err)
        said_hello("".join(re.findall(r"^rank .*\n", out, re.M)), workers)  # UCX may complain in the first round


def case_spawn_is_an_error_for_the_program():
    code, out, err = Job([2], "mpich", "spawn").end()
    assert code == 0, (code, err)


def case_pmi2():
    for workers in LAYOUTS:
        code, out, err = Job(workers, "pmi2", options=["--mpi", "pmi"]).end()
        assert code == 0, (workers, code, err)
        n = sum(workers)
        assert sorted(out.splitlines()) == sorted(f"rank {r} of {n} by PMI-2" for r in range(n)), out


def case_an_abort_is_read_before_the_exit():
    # PMI2_Abort() of this library exits at once.
    for _ in range(40):
        status, out, err = Job([2, 2], "pmi2", "abort", options=["--mpi", "pmi"]).end()
        assert status == 1 and err.count("First failure: rank 1 on ") == 2, (status, err)
        assert err.count("called MPI_Abort: enough\n") >= 2, (status, err)


def case_open_mpi_is_refused():
    status, out, err = Job([2], "openmpi").end()
    assert status == 2 and not out, (status, out)
    assert err.count("\n") == 1 and "is linked with Open MPI (libmpi.so.40), which needs its own starter" in err, err
    # The reason for the refusal.
    code, out, err = Job([2], "openmpi", options=["--mpi", "off"], env={"OMPI_MCA_btl": "self,tcp"}).end()
    assert code == 0 and out.splitlines() == ["rank 0 of 1, 1 on its node"] * 2, (code, out, err)


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
