#!/usr/bin/env python3
"""dlaunch in a real Slurm.

    test_slurm.py BUILD            the tests

TEST_FILTER=text runs the tests whose name contains it. Needs root, ip(8), Debian's slurm-wlm and munge.
"""
import os
import subprocess
import sys
import time

import cluster as slurm
from cluster import Cluster, Failure

STEP = "srun -N2 --ntasks-per-node=1 "
SHOW = "worker env RANK"


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


TESTS = [a_launcher_on_each_node, tasks_and_workers_are_one_too_many, the_advice_is_good_in_a_script_with_tasks,
         programs_without_dlaunch]

PROGRAMS = ["dlaunch", "dlaunchctl", "libdlcoll.so.0", "tests/worker", "examples/allreduce", "examples/train"]


# --------------------------------------------------------------------------------------------------- main

def needs(**options):
    """A cluster of its own, with these options."""
    def mark(test):
        test.cluster = options
        return test
    return mark


def run(test, c):
    begin = time.monotonic()
    try:
        test(c)
        c.expect_clean()
    except (AssertionError, OSError, subprocess.SubprocessError, LookupError, ValueError) as why:
        print(f"slurm: {test.__name__}: FAILED\n{why or repr(why)}", flush=True)
        return False
    print(f"slurm: {test.__name__}: ok ({time.monotonic() - begin:.1f} s)", flush=True)
    return True


def main():
    why = slurm.missing()
    if why:
        print(f"SKIPPED: Slurm: {why}")
        return 0
    programs = [os.path.join(sys.argv[1], p) for p in PROGRAMS]
    tests = [t for t in TESTS if os.environ.get("TEST_FILTER", "") in t.__name__]
    failed, shared = 0, None
    try:
        for test in tests:
            own = getattr(test, "cluster", None)
            if own:
                c = Cluster(programs=programs, **own)
            else:
                c = shared = shared or Cluster(2, programs)
            try:
                ok = run(test, c)
            finally:
                if own:
                    c.close()
            failed += not ok
            if not ok and not own:  # what it has left is not the next one's
                shared.close()
                shared = None
    finally:
        if shared:
            shared.close()
    print(f"{len(tests) - failed} passed, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
