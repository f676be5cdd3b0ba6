#!/usr/bin/env python3
"""PyTorch's own tests of a CPU backend, from the installed package, unchanged, with dlcoll in the place of gloo.

    pytorch_own.py [-k PATTERN ...] [unittest's options]

Runs the tests with gloo, then with dlcoll, and prints each test that gloo passes and dlcoll does not, unless
doc/pytorch.md lists it with the reason; then the exit status is 1. WORLD_SIZE (2) is the number of ranks.

    pytorch_own.py gloo|dlcoll [...]

runs the tests with one of the two, and shows what they print. The name "gloo" makes dlcoll's group where "dlcoll" is
asked for, so that tests that are written for gloo alone run too.
"""
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

from jobs import BACKEND_ENV, build_backend

HERE = os.path.dirname(os.path.abspath(__file__))
BACKENDS = ("gloo", "dlcoll")


def listed():
    """The tests that doc/pytorch.md lists: `test_name` in the first column of a table."""
    with open(os.path.join(HERE, "..", "..", "doc", "pytorch.md")) as f:
        return set(re.findall(r"^\| `(test_\w+)`", f.read(), re.M))


def run_one(backend, options):
    """Name -> ("ok" | "skipped" | "FAILED", the last line of the reason), and the seconds that it took."""
    start = time.monotonic()
    with tempfile.NamedTemporaryFile("r", prefix="pytorch_own.") as results, \
            tempfile.TemporaryDirectory(prefix="pytorch_own.") as folder, \
            open(os.path.join(tempfile.gettempdir(), f"pytorch_own.{backend}.log"), "w") as log:
        subprocess.run([sys.executable, __file__, backend, *options], stdout=log, stderr=log,
                       env={**os.environ, "PYTORCH_OWN_RESULTS": results.name, "TEMP_DIR": folder})
        lines = [line.rstrip("\n").split("\t") for line in results]
    return {name: (status, why) for status, name, why in lines}, time.monotonic() - start


def reason_to_skip():
    """Why this interpreter cannot run the tests, or None."""
    try:
        import expecttest  # noqa: F401
        import torch
    except ImportError as e:
        return f"{sys.executable} has no {e.name}"
    version = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    return None if version >= (2, 9) else "the backend dlcoll is for PyTorch 2.9 and later, not %d.%d" % version


def compare(options):
    why = reason_to_skip()
    if why:
        print("SKIPPED:", why)
        return 0
    build_backend()
    os.environ.update(BACKEND_ENV)
    results = {}
    for backend in BACKENDS:
        results[backend], seconds = run_one(backend, options)
        count = [status for status, _ in results[backend].values()]
        print(f"{backend}: {count.count('ok')} passed, {count.count('skipped')} skipped, "
              f"{count.count('FAILED')} failed, {seconds:.0f} s", flush=True)
    bad, known = 0, listed()
    for name, (status, _) in results["gloo"].items():
        got, why = results["dlcoll"].get(name, ("did not run", ""))
        if status == "ok" and got != "ok":
            print(f"{'listed' if name in known else 'FAILED'}: {name}: {got}: {why}")
            bad += name not in known
    tried = sum(status == "ok" for status, _ in results["gloo"].values())
    if not tried:
        print("FAILED: not a single test passed with gloo")
        bad = tried = 1
    print("%d%%: Checks: %d, Failures: %d, Errors: 0" % (100 * (tried - bad) // tried, tried, bad))
    return 1 if bad else 0


def run_tests(backend, options):
    os.environ["BACKEND"] = "gloo"
    os.environ.setdefault("WORLD_SIZE", "2")
    os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="pytorch_own."))
    for folder in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(os.environ["TEMP_DIR"], folder), exist_ok=True)
    import torch.distributed as dist

    if backend == "dlcoll":
        sys.path.append(os.path.join(HERE, "..", "..", "collectives", "python"))
        import dlcoll.torch

        def create(options, backend_options):
            return dlcoll.torch._create(options, backend_options, "gloo")

        # The type is CUSTOM: PyTorch's logger takes every backend of type GLOO for an object of its own class.
        dist.Backend.register_backend("gloo", create, extended_api=True, devices=["cpu"],
                                      _backend_type=dist.ProcessGroup.BackendType.CUSTOM)
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    class OwnTests(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)  # new ones would import for seconds

    class Results(unittest.TextTestResult):
        def note(self, status, test, why=""):
            if os.environ.get("PYTORCH_OWN_RESULTS"):
                last = why.strip().splitlines()[-1:] or [""]
                with open(os.environ["PYTORCH_OWN_RESULTS"], "a") as f:
                    print(status, test.id().split(".")[-1], last[0].replace("\t", " "), sep="\t", file=f)

        def addSuccess(self, test):
            super().addSuccess(test)
            self.note("ok", test)

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            self.note("skipped", test, reason)

        def addFailure(self, test, err):
            super().addFailure(test, err)
            self.note("FAILED", test, self.failures[-1][1])

        def addError(self, test, err):
            super().addError(test, err)
            self.note("FAILED", test, self.errors[-1][1])

    suite_module = sys.modules["__main__"]
    suite_module.OwnTests = OwnTests
    OwnTests.__qualname__ = "OwnTests"
    unittest.main(module=suite_module, argv=[sys.argv[0], *options], verbosity=2,
                  testRunner=unittest.TextTestRunner(verbosity=2, resultclass=Results))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in BACKENDS:
        run_tests(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(compare(sys.argv[1:]))
