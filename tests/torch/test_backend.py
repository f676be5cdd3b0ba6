#!/usr/bin/env python3
"""torch.distributed's backend dlcoll, in both implementations, with the PyTorch of this interpreter (backend.py)."""
import os
import subprocess
import sys

from jobs import (BACKEND_ENV, BUILD, HERE, PYTHON, Job, build_backend, count, dlaunch, free_port, nodes, run_checks,
                  script, torch_version)

VERSION = torch_version()
if VERSION is None:
    print(f"SKIPPED: {sys.executable} has no PyTorch")
    sys.exit(0)
if VERSION < (2, 9):
    print("SKIPPED: the backend dlcoll is for PyTorch 2.9 and later, not %d.%d" % VERSION)
    sys.exit(0)
PROGRAM = os.path.join(HERE, "backend.py")
ENV = BACKEND_ENV
CTYPES = {**ENV, "DLCOLL_TORCH": "ctypes"}


def passed(text):
    assert count(text, r"\d+ passed, 0 failed") == 1 and count(text, "(?m)^ok ") >= 17, text


def extension_is_built(folder):
    build_backend()
    shown = subprocess.run([PYTHON, "-m", "dlcoll.torch"], env={**os.environ, **ENV}, capture_output=True, text=True)
    assert "implementation: c++" in shown.stdout, shown.stdout + shown.stderr


def extension_on_one_node(folder):
    build_backend()
    for ranks in (1, 2, 4):
        passed(dlaunch("--nproc_per_node", ranks, PYTHON, PROGRAM, "dlcoll", env=ENV).wait())


def extension_on_two_nodes(folder):
    build_backend()
    passed("".join(j.wait() for j in nodes(2, "--nproc_per_node", 2, PYTHON, PROGRAM, "dlcoll", env=ENV)))


def extension_beside_another_device(folder):
    build_backend()
    passed(dlaunch("--nproc_per_node", 2, PYTHON, PROGRAM, "cpu:dlcoll,cuda:gloo", env=ENV).wait())


def extension_compiles_functional_collectives(folder):
    build_backend()
    out = dlaunch("--nproc_per_node", 2, PYTHON, PROGRAM, "dlcoll", "functional",
                  env={**ENV, "BACKEND_COMPILE": "1"}).wait()
    assert "1 passed, 0 failed" in out, out


def extension_without_a_launcher(folder):
    build_backend()
    port, jobs = free_port(), []
    for rank in range(3):
        env = {**ENV, "RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        jobs.append(Job(PYTHON, PROGRAM, "dlcoll", env=env))
    passed("".join(job.wait() for job in jobs))


def installed_backend_is_found_by_its_name(folder):
    root = os.path.join(HERE, "..", "..")
    made = subprocess.run([os.path.join(root, "conf", "make-wheel.py"), BUILD, folder], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    site = folder + "/site"
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", site,
                    made.stdout.strip()], check=True)
    program = folder + "/by_name.py"
    with open(program, "w") as f:
        f.write("import torch, torch.distributed as dist\ndist.init_process_group('dlcoll')\nx = torch.ones(3)\n"
                "dist.all_reduce(x)\nassert x.tolist() == [2.0] * 3\nprint('found', dist.get_backend())\n"
                "dist.destroy_process_group()\n")
    env = {**ENV, "PYTHONPATH": site}
    assert count(dlaunch("--nproc_per_node", 2, PYTHON, program, env=env).wait(), "found dlcoll") == 2


def python_on_one_node(folder):
    for ranks in (1, 3):
        passed(dlaunch("--nproc_per_node", ranks, PYTHON, PROGRAM, "dlcoll", env=CTYPES).wait())


def python_on_two_nodes(folder):
    passed("".join(j.wait() for j in nodes(2, "--nproc_per_node", 2, PYTHON, PROGRAM, "dlcoll", env=CTYPES)))


def a_killed_rank_is_named(folder):
    for env in (ENV, CTYPES):
        if env is ENV:
            build_backend()
        out = dlaunch("--nproc_per_node", 3, PYTHON, script("backend_killed.py"),
                      folder, env=env)
        out.wait(128 + 9)
        with open(folder + "/errors") as f:
            text = f.read()
        assert count(text, r"DistBackendError: dlcoll: .*rank 2 ") == 2, text
        os.unlink(folder + "/errors")


CHECKS = [extension_is_built, extension_on_one_node, extension_on_two_nodes, extension_beside_another_device,
          extension_compiles_functional_collectives, extension_without_a_launcher,
          installed_backend_is_found_by_its_name, python_on_one_node, python_on_two_nodes, a_killed_rank_is_named]

if __name__ == "__main__":
    run_checks("backend dlcoll, PyTorch %d.%d" % VERSION, CHECKS)
