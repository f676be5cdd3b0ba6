#!/usr/bin/env python3
"""The cases of backend_hard.py with an extension that is built with a sanitizer.

    sanitized.py [address|thread [CASE ...]]        (address: the default)

Python and PyTorch are as they are: the sanitizer sees all of the heap, but of the code only the extension's own.
"""
import os
import subprocess
import sys

from jobs import BACKEND_ENV, BUILD, HERE, PYTHON, Skip, count, dlaunch, run_checks, torch_version

CASES = sys.argv[2:]
FLAGS = "-fsanitize={} -fno-omit-frame-pointer -g1 -O1"
OPTIONS = {
    # Python does not free everything at its end, and libdlcoll changes stacks.
    "address": "detect_leaks=0:detect_stack_use_after_return=0",
    # Python and PyTorch are not built with it: only the extension's accesses count.
    "thread": "ignore_noninstrumented_modules=1:report_signal_unsafe=0:suppressions={}/known",
}


def libraries(name):
    """What has to be loaded first: the sanitizer, and the library whose exceptions it has to see."""
    found = []
    for library in (f"lib{name}.so", "libstdc++.so.6"):
        path = subprocess.run(["g++", f"-print-file-name={library}"], capture_output=True, text=True).stdout.strip()
        if not os.path.isabs(path):
            raise Skip(f"{library} is not installed")
        found.append(os.path.realpath(path))
    return ":".join(found)


def hard_cases(sanitizer, folder):
    preload = libraries({"address": "asan", "thread": "tsan"}[sanitizer])
    env = {**BACKEND_ENV, "XDG_CACHE_HOME": f"{BUILD}/torch-cache-{sanitizer}",
           "DLCOLL_TORCH_CXXFLAGS": FLAGS.format(sanitizer)}
    # The extension is compiled without the sanitizer in the process: it cannot be loaded yet.
    built = subprocess.run(
        [PYTHON, "-c", "import os; from dlcoll.torch import extension as e; p = e.path(); "
                       "os.makedirs(os.path.dirname(p), exist_ok=True); os.path.exists(p) or e.compile_to(p)"],
        env={**os.environ, **env}, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    # PyTorch's code drops the last reference to a future: that this comes after the others is in the count, which
    # the sanitizer sees only where the extension changes it.
    with open(folder + "/known", "w") as f:
        f.write("race:c10::ivalue::Future::~Future\n")
    variable = {"address": "ASAN_OPTIONS", "thread": "TSAN_OPTIONS"}[sanitizer]
    job = dlaunch("--nproc_per_node", 2, "--export", "LD_PRELOAD=" + preload, PYTHON, f"{HERE}/backend_hard.py", *CASES,
                  env={**env, "PYTHONMALLOC": "malloc", variable: OPTIONS[sanitizer].format(folder) + f":log_path={folder}/report"})
    try:
        text = job.wait(seconds=1200)
    finally:
        for name in sorted(n for n in os.listdir(folder) if n.startswith("report")):
            with open(f"{folder}/{name}", errors="replace") as f:
                report = f.read()
            assert "ERROR" not in report and "WARNING: ThreadSanitizer" not in report, report
    assert count(text, r"\d+ passed, 0 failed") == 1, job.everything()


def address(folder):
    hard_cases("address", folder)


def thread(folder):
    hard_cases("thread", folder)


if __name__ == "__main__":
    version = torch_version()
    if version is None or version < (2, 9):
        print(f"SKIPPED: {sys.executable} has no PyTorch that the backend dlcoll is for")
        sys.exit(0)
    run_checks("backend dlcoll", [thread if sys.argv[1:2] == ["thread"] else address])
