#!/usr/bin/env python3
"""Installs the wheel into an empty virtual environment, outside of the source tree, and uses what it brings.

    test_wheel.py WHEEL
"""
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 300  # seconds for one command


class Environment:
    """An empty virtual environment. `run` sees nothing of the caller's Python and of the source tree."""

    def __init__(self, folder):
        self.prefix = os.path.join(folder, "venv")
        self.folder = folder
        subprocess.run(["/usr/bin/python3", "-m", "venv", self.prefix], check=True, timeout=LIMIT)
        self.env = {"PATH": f"{self.prefix}/bin:/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8",
                    "OMP_NUM_THREADS": "1", "TMPDIR": folder}

    def run(self, *argv, status=0, **env):
        done = subprocess.run(argv, cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True,
                              timeout=LIMIT)
        text = done.stdout + done.stderr
        assert done.returncode == status, f"$ {' '.join(argv)}\nexit status {done.returncode}, not {status}\n{text}"
        return text


def files_below(folder):
    return sorted(os.path.join(d, f) for d, _, names in os.walk(folder) for f in names if "__pycache__" not in d)


def launcher_works(e):
    assert e.run("dlaunch", "--version").startswith("dlaunch "), "dlaunch --version"
    out = e.run("dlaunch", "--nproc_per_node", "3", "--no_python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert all(f"rank {r} of 3\n" in out for r in range(3)), out
    assert e.run("python", "-m", "dlaunch", "--version") == e.run("dlaunch", "--version")
    e.run("dlaunch", "--nproc_per_node", "2", "--no_python", "sh", "-c", "exit 7", status=7)
    # The launcher is a program of its own: no Python between the shell and the workers.
    with open(f"{e.prefix}/bin/dlaunch", "rb") as f:
        assert f.read(4) == b"\x7fELF"


def c_program_is_built_and_runs(e):
    shutil.copy(os.path.join(ROOT, "examples", "allreduce.c"), e.folder)
    flags = e.run("pkg-config", "--cflags", "--libs", "dlcoll", PKG_CONFIG_PATH=f"{e.prefix}/lib/pkgconfig").split()
    e.run("cc", "-o", "allreduce", "allreduce.c", *flags, f"-Wl,-rpath,{e.prefix}/lib")
    assert "2 ranks" in e.run("dlaunch", "--nproc_per_node", "2", "./allreduce")
    e.run("dlaunch", "--nproc_per_node", "2", "dlcoll_perf", "all_reduce", "--max", "64K")
    assert "version: " in e.run("dlcoll_info")


def manual_pages_are_there(e):
    for page in ("man1/dlaunch.1", "man3/dlcoll.3", "man7/dlaunch-security.7"):
        assert os.path.exists(f"{e.prefix}/share/man/{page}"), page


def python_package_works(e):
    program = os.path.join(e.folder, "sum.py")
    with open(program, "w") as f:
        f.write("import dlcoll\nprint(sorted(dlcoll.__all__))\n")
    assert "['Comm', 'Error', 'Work']" in e.run("python", program)
    # numpy: where the system has it (the environment is empty).
    numpy = subprocess.run(["/usr/bin/python3", "-c", "import numpy; print(numpy.__path__[0])"], capture_output=True,
                           text=True)
    if numpy.returncode:
        print("SKIPPED: the operations on numpy arrays: /usr/bin/python3 has no numpy")
        return
    arrays = os.path.join(e.folder, "use_arrays.py")
    shutil.copy(os.path.join(ROOT, "tests", "lib", "use_arrays.py"), arrays)
    out = e.run("dlaunch", "--nproc_per_node", "3", arrays,
                PYTHONPATH=os.path.dirname(numpy.stdout.strip()))
    assert out.count("everything is as it should be") == 3, out


def main():
    wheel = os.path.abspath(sys.argv[1])
    with zipfile.ZipFile(wheel) as z:
        assert z.testzip() is None
    failed = 0
    checks = [launcher_works, c_program_is_built_and_runs, manual_pages_are_there, python_package_works]
    with tempfile.TemporaryDirectory(prefix="dlaunch-wheel.") as folder:
        e = Environment(folder)
        before = files_below(e.prefix)
        e.run("pip", "install", "--no-index", "--no-deps", wheel)
        for check in checks:
            try:
                check(e)
                print(f"wheel: {check.__name__}: ok", flush=True)
            except (AssertionError, OSError, subprocess.SubprocessError) as why:
                failed += 1
                print(f"wheel: {check.__name__}: FAILED\n{why}", flush=True)
        e.run("pip", "uninstall", "-y", "dlaunch")
        left = [f for f in files_below(e.prefix) if f not in before]
        if left:
            failed += 1
            print(f"wheel: uninstall leaves {left[0]} and {len(left) - 1} more")
    print(f"{len(checks) + 1 - failed} passed, {failed} failed")
    sys.exit(bool(failed))


main()
