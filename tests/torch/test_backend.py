#!/usr/bin/env python3
"""torch.distributed's backend dlcoll, with the PyTorch of this interpreter (backend.py, backend_hard.py)."""
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
HARD = os.path.join(HERE, "backend_hard.py")
ENV = BACKEND_ENV


def passed(text):
    assert count(text, r"\d+ passed, 0 failed") == 1 and count(text, "(?m)^ok ") >= 17, text


def shown_extension(env):
    """The path of the extension, as `python -m dlcoll.torch` shows it, and what else it says."""
    shown = subprocess.run([PYTHON, "-m", "dlcoll.torch"], env={**os.environ, **env}, capture_output=True, text=True)
    first = shown.stdout.splitlines()[0]
    assert first.startswith("extension: "), shown.stdout + shown.stderr
    return first[len("extension: "):].split(" (")[0], shown.stdout


def extension_is_built(folder):
    build_backend()
    path, text = shown_extension(ENV)
    assert os.path.exists(path) and "not compiled" not in text, text
    # What the file must fit is in its name.
    about = subprocess.run([PYTHON, "-c", "import platform, sysconfig, torch; print(torch.__version__, "
                            "sysconfig.get_config_var('SOABI'), platform.machine())"], capture_output=True, text=True)
    with open(os.path.join(HERE, "..", "..", "VERSION")) as f:
        for part in (*about.stdout.split(), "dlcoll" + f.read().strip()):
            assert part in os.path.basename(path), (part, path)


ONCE = """import sys
import torch.distributed as dist
import dlcoll.torch
dist.init_process_group("dlcoll")
dist.barrier()
dist.destroy_process_group()
"""


def first_use(folder, compiler):
    """Two ranks use the backend with an empty cache and that compiler: the job."""
    with open(folder + "/once.py", "w") as f:
        f.write(ONCE)
    env = {**ENV, "XDG_CACHE_HOME": folder + "/cache", "CXX": compiler}
    return dlaunch("--nproc_per_node", 2, PYTHON, folder + "/once.py", env=env), env


def pretended_compiler(folder):
    """A compiler that counts its calls, and gives what was compiled before."""
    made, _ = shown_extension(ENV)
    with open(folder + "/c++", "w") as f:
        f.write(f'#!/bin/sh\necho called >> {folder}/calls\nwhile [ "$1" != -o ]; do shift; done\nexec cp {made} "$2"\n')
    os.chmod(folder + "/c++", 0o755)
    return folder + "/c++"


def calls(folder):
    with open(folder + "/calls") as f:
        return len(f.readlines())


def extension_is_compiled_once_when_first_needed(folder):
    build_backend()
    job, env = first_use(folder, pretended_compiler(folder))
    job.wait()
    assert calls(folder) == 1 and count(job.text("err"), "compiling the backend") == 1, job.everything()
    path, _ = shown_extension(env)
    first_use(folder, "/nowhere/c++")[0].wait()  # it is there now
    for n, size in enumerate((1000, os.path.getsize(path) - 100)):  # cut off, as by a full disk
        with open(path, "r+b") as f:
            f.truncate(size)
        first_use(folder, env["CXX"])[0].wait()
        assert calls(folder) == n + 2


def without_a_compiler_a_line_says_what_to_do(folder):
    job, env = first_use(folder, "/nowhere/c++")
    job.wait(1)
    said = "the C++ compiler /nowhere/c++ is missing: install g++, or name a compiler with CXX"
    assert count(job.text("err"), "RuntimeError: dlcoll: the backend has not been compiled for PyTorch") and \
        said in job.text("err"), job.everything()
    made = subprocess.run([PYTHON, "-m", "dlcoll.torch", "--build"], env={**os.environ, **env}, capture_output=True,
                          text=True)
    assert made.returncode == 1 and said in made.stderr and made.stderr.count("\n") == 1, made


def extension_on_one_node(folder):
    build_backend()
    for ranks in (1, 2, 4):
        passed(dlaunch("--nproc_per_node", ranks, PYTHON, PROGRAM, "dlcoll", env=ENV).wait())


def extension_on_two_nodes(folder):
    build_backend()
    passed("".join(j.wait() for j in nodes(2, "--nproc_per_node", 2, PYTHON, PROGRAM, "dlcoll", env=ENV)))


def threads_futures_failures_and_ends(folder):
    build_backend()
    for start in (lambda: [dlaunch("--nproc_per_node", 2, PYTHON, HARD, env=ENV)], lambda: nodes(2, PYTHON, HARD, env=ENV)):
        text = "".join(job.wait() for job in start())
        assert count(text, r"\d+ passed, 0 failed") == 1 and count(text, "(?m)^ok ") >= 25, text


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


def a_killed_rank_is_named(folder):
    build_backend()
    out = dlaunch("--nproc_per_node", 3, PYTHON, script("backend_killed.py"), folder, env=ENV)
    out.wait(128 + 9)
    with open(folder + "/errors") as f:
        text = f.read()
    assert count(text, r"DistBackendError: dlcoll: .*rank 2 ") == 2, text


CHECKS = [extension_is_built, threads_futures_failures_and_ends, extension_on_one_node, extension_on_two_nodes,
          extension_is_compiled_once_when_first_needed, without_a_compiler_a_line_says_what_to_do,
          a_killed_rank_is_named, extension_without_a_launcher, installed_backend_is_found_by_its_name,
          extension_beside_another_device, extension_compiles_functional_collectives]

if __name__ == "__main__":
    run_checks("backend dlcoll, PyTorch %d.%d" % VERSION, CHECKS)
