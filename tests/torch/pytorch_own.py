#!/usr/bin/env python3
"""PyTorch's own tests of a CPU backend, from the installed package, unchanged, with dlcoll in the place of gloo.

    pytorch_own.py gloo|dlcoll [-k PATTERN ...] [unittest's options]

The name "gloo" makes dlcoll's group where "dlcoll" is asked for, so that tests that are written for gloo alone run
too. WORLD_SIZE (2) is the number of ranks. Compare the results of the two.
"""
import os
import sys
import tempfile
import unittest

kind = os.environ.setdefault("PYTORCH_OWN", sys.argv[1] if len(sys.argv) > 1 else "dlcoll")
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="pytorch_own."))
for folder in ("barrier", "test_dir", "init_dir"):
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], folder), exist_ok=True)

import torch.distributed as dist  # noqa: E402

if kind == "dlcoll":
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "collectives", "python"))
    import dlcoll.torch

    def create(options, backend_options):
        return dlcoll.torch._create(options, backend_options, "gloo")

    # Of type CUSTOM: PyTorch's logger takes every backend of type GLOO for an object of its own class.
    dist.Backend.register_backend("gloo", create, extended_api=True, devices=["cpu"],
                                  _backend_type=dist.ProcessGroup.BackendType.CUSTOM)

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class OwnTests(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
