#!/usr/bin/env python3
"""Installs the wheel into an empty virtual environment, outside of the source tree, and uses what it brings.

    test_wheel.py WHEEL [SYSROOT]

With SYSROOT (conf/make-sysroot.sh) the wheel is for another processor: its programs are unpacked and run under
qemu-user with the libraries of SYSROOT.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 300  # seconds for one command


class Environment:
    """An empty virtual environment. `run` sees nothing of the caller's Python and of the source tree."""

    def __init__(self, folder, *options):
        self.prefix = os.path.join(folder, "venv")
        self.folder = folder
        subprocess.run(["/usr/bin/python3", "-m", "venv", *options, self.prefix], check=True, timeout=LIMIT)
        self.env = {"PATH": f"{self.prefix}/bin:/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8",
                    "OMP_NUM_THREADS": "1", "TMPDIR": folder}

    def run(self, *argv, status=0, **env):
        done = subprocess.run(argv, cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True,
                              timeout=LIMIT)
        text = done.stdout + done.stderr
        assert done.returncode == status, f"$ {' '.join(argv)}\nexit status {done.returncode}, not {status}\n{text}"
        return text


class Foreign:
    """The wheel of another processor, unpacked as pip would. `run` emulates the programs that come from it."""

    def __init__(self, folder, wheel, sysroot):
        self.prefix, self.folder, self.sysroot = os.path.join(folder, "unpacked"), folder, sysroot
        self.machine = re.search(r"(x86_64|aarch64)\.whl$", wheel).group(1)
        qemu = shutil.which(f"qemu-{self.machine}")
        self.emulator = [qemu, "-L", sysroot] if qemu else None
        self.env = {"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
                    "TMPDIR": folder}
        with zipfile.ZipFile(wheel) as z:
            for entry in z.infolist():
                path = re.sub(r"^dlaunch-[^/]*\.data/(scripts|data)/", lambda m: {"scripts": "bin/", "data": ""}[m[1]],
                              entry.filename)
                path = os.path.join(self.prefix, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(z.read(entry))
                os.chmod(path, entry.external_attr >> 16 & 0o777)

    def program(self, name):
        return [*self.emulator, os.path.join(self.prefix, "bin", name)]

    run = Environment.run


def files_below(folder):
    return sorted(os.path.join(d, f) for d, _, names in os.walk(folder) for f in names if "__pycache__" not in d)


def launcher_works(e):
    assert e.run("dlaunch", "--version").startswith("dlaunch "), "dlaunch --version"
    out = e.run("dlaunch", "--nproc_per_node", "3", "--no_python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert all(f"rank {r} of 3\n" in out for r in range(3)), out
    assert e.run("python", "-m", "dlaunch", "--version") == e.run("dlaunch", "--version")
    e.run("dlaunch", "--nproc_per_node", "2", "--no_python", "sh", "-c", "exit 7", status=7)
    assert e.run("dlaunch-inspect", "--version").startswith("dlaunch-inspect "), "dlaunch-inspect --version"
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


JOBS = """
import os, sys
import dlaunch

seen = []
r = dlaunch.run(["sh", "-c", "echo rank $RANK; [ $RANK = 0 ] || exit 5"], nproc_per_node=2, check=False,
                capture_output=True, on_event=lambda event: seen.append(event.name))
assert r.exit_status == 5 and "exited with code 5" in r.why and "First failure: rank 1" in r.text, r
assert b"rank 1\\n" in r.stdout and r.report["exit_code"] == 5, r
assert seen.count("worker.start") == 2 and "finish" in seen, seen
try:
    dlaunch.run(["true"], options=["--no_such_option"], capture_output=True)
except dlaunch.JobError as e:
    assert e.result.exit_status == 2 and "--no_such_option" in str(e), e
else:
    sys.exit("a wrong option is accepted")
for wrong in ({"argv": []}, {"argv": ["true"], "options": ["x"]}, {"argv": ["true"], "nproc_per_node": -1}):
    try:
        dlaunch.Job(**wrong)
    except ValueError:
        continue
    sys.exit(f"{wrong} is accepted")
with dlaunch.Job(["sh", "-c", "echo $$; exec sleep 100"]) as job:
    pid = next(int(event.data) for event in job if event.type == "out")
    assert job.wait(0.01) is None or job.result is None
    job.stop()
    assert [event.type for event in job][-1] == "end" and job.result.exit_status == 143, job.result
    assert job.next() is None
with dlaunch.Job(["sh", "-c", "echo $$; exec sleep 100"]) as job:
    pid = next(int(event.data) for event in job if event.type == "out")
assert not os.path.exists(f"/proc/{pid}"), "a worker is left"
print("jobs are as they should be")
"""


def jobs_are_started_by_programs(e):
    script = os.path.join(e.folder, "jobs.py")
    with open(script, "w") as f:
        f.write(JOBS)
    assert "jobs are as they should be" in e.run("python", script)
    source = os.path.join(e.folder, "job.c")
    with open(os.path.join(ROOT, "man", "dlaunch.3")) as f:
        program = f.read().split(".Bd -literal\n#include", 1)[1].split("\n.Ed", 1)[0].replace("\\e", "\\")
    with open(source, "w") as f:
        f.write(f"#include{program}\n")
    flags = e.run("pkg-config", "--cflags", "--libs", "dlaunch", PKG_CONFIG_PATH=f"{e.prefix}/lib/pkgconfig").split()
    e.run("cc", "-o", "job", source, *flags, f"-Wl,-rpath,{e.prefix}/lib")
    assert "rank 2 of 3" in e.run("./job")


def manual_pages_are_there(e):
    for page in ("man1/dlaunch.1", "man3/dlaunch.3", "man3/dlcoll.3", "man7/dlaunch-security.7"):
        assert os.path.exists(f"{e.prefix}/share/man/{page}"), page


def python_package_works(e):
    program = os.path.join(e.folder, "sum.py")
    with open(program, "w") as f:
        f.write("import dlcoll\nprint(sorted(dlcoll.__all__))\n")
    with open(os.path.join(ROOT, "collectives", "python", "dlcoll", "__init__.py")) as f:
        names = re.search(r"__all__ = (\[.*\])", f.read()).group(1).replace('"', "'")
    assert names in e.run("python", program), names
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


FOUND = """
import os
import dlaunch
from dlaunch import _find

for path in (_find.library(), _find.program()):
    assert os.path.realpath(path).startswith(os.path.realpath(os.environ["INSTALLED"]) + os.sep), path
assert dlaunch.run(["true"], nproc_per_node=2).exit_status == 0
print("found, and used")
"""


def found_with_user_and_target(folder, wheel):
    """pip install --user and --target put the programs and libraries elsewhere: the package finds those that came with
    it, and no other ones. The virtual environment shows the system's packages, without which pip takes no --user."""
    e = Environment(os.path.join(folder, "elsewhere"), "--system-site-packages")
    user, target = os.path.join(e.folder, "user"), os.path.join(e.folder, "target")
    e.env.update(PYTHONUSERBASE=user)
    install = ["pip", "install", "--no-index", "--no-deps"]
    e.run(*install, "--target", target, wheel)
    assert "found, and used" in e.run("python", "-c", FOUND, PYTHONPATH=target, INSTALLED=target)
    e.run(*install, "--user", wheel)
    assert "found, and used" in e.run("python", "-c", FOUND, INSTALLED=user)
    # Both are there: each package has its own.
    assert "found, and used" in e.run("python", "-c", FOUND, PYTHONPATH=target, INSTALLED=target)


def foreign_tag_is_accepted(e, wheel):
    """By pip, for that processor: it looks at the name of the file and at the metadata."""
    e.run("/usr/bin/python3", "-m", "venv", "pip")
    e.run("pip/bin/pip", "install", "--no-index", "--no-deps", "--only-binary=:all:", "--target", "by-pip", "--platform",
          re.search(r"manylinux[^.]*", wheel).group(0), wheel)


def foreign_programs_are_for_that_processor(e, _):
    for path in (*glob.glob(f"{e.prefix}/bin/*"), *glob.glob(f"{e.prefix}/lib/*.so.0")):
        with open(path, "rb") as f:
            header = f.read(20)
        assert header[:4] == b"\x7fELF" and header[18] == {"x86_64": 62, "aarch64": 183}[e.machine], path


def foreign_launcher_works(e, _):
    dlaunch = e.program("dlaunch")
    assert e.run(*dlaunch, "--version").startswith("dlaunch "), "dlaunch --version"
    out = e.run(*dlaunch, "--nproc_per_node", "3", "--no_python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert all(f"rank {r} of 3\n" in out for r in range(3)), out
    e.run(*dlaunch, "--nproc_per_node", "2", "--no_python", "sh", "-c", "exit 7", status=7)
    e.run(*dlaunch, "--nproc_per_node", "2", "--no_python", "/nonexistent", status=127)


def foreign_c_program_is_built_and_runs(e, _):
    shutil.copy(os.path.join(ROOT, "examples", "allreduce.c"), e.folder)
    flags = e.run("pkg-config", "--cflags", "--libs", "dlcoll", PKG_CONFIG_PATH=f"{e.prefix}/lib/pkgconfig").split()
    e.run(f"{e.machine}-linux-gnu-gcc", f"--sysroot={e.sysroot}", "-o", "allreduce", "allreduce.c", *flags,
          f"-Wl,-rpath,{e.prefix}/lib")
    two = [*e.program("dlaunch"), "--nproc_per_node", "2", "--no_python"]
    assert "2 ranks" in e.run(*two, *e.emulator, "./allreduce")
    assert " 0 wrong elements" in e.run(*two, *e.program("dlcoll_perf"), "all_reduce", "--max", "64K")


def test_foreign(folder, wheel, sysroot):
    e = Foreign(folder, wheel, sysroot)
    checks = [foreign_tag_is_accepted, foreign_programs_are_for_that_processor]
    if e.emulator:
        checks += [foreign_launcher_works, foreign_c_program_is_built_and_runs]
    else:
        print(f"SKIPPED: running the programs of {e.machine}: qemu-{e.machine} is not installed")
    return sum(not passes(check, e, wheel) for check in checks), len(checks)


def passes(check, *arguments):
    try:
        check(*arguments)
    except (AssertionError, OSError, subprocess.SubprocessError) as why:
        print(f"wheel: {check.__name__}: FAILED\n{why}", flush=True)
        return False
    print(f"wheel: {check.__name__}: ok", flush=True)
    return True


def test_native(folder, wheel):
    checks = [launcher_works, c_program_is_built_and_runs, jobs_are_started_by_programs, manual_pages_are_there,
              python_package_works]
    e = Environment(folder)
    before = files_below(e.prefix)
    e.run("pip", "install", "--no-index", "--no-deps", wheel)
    failed = sum(not passes(check, e) for check in checks)
    e.run("pip", "uninstall", "-y", "dlaunch")
    left = [f for f in files_below(e.prefix) if f not in before]
    if left:
        failed += 1
        print(f"wheel: uninstall leaves {left[0]} and {len(left) - 1} more")
    failed += not passes(found_with_user_and_target, folder, wheel)
    return failed, len(checks) + 2


def main():
    wheel = os.path.abspath(sys.argv[1])
    with zipfile.ZipFile(wheel) as z:
        assert z.testzip() is None
    with tempfile.TemporaryDirectory(prefix="dlaunch-wheel.") as folder:
        failed, checks = test_foreign(folder, wheel, sys.argv[2]) if sys.argv[2:] else test_native(folder, wheel)
    print(f"{checks - failed} passed, {failed} failed")
    sys.exit(bool(failed))


main()
