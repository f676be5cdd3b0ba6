"""Rank 2 is killed while the others wait for it: they get an error that names it, and write it to FOLDER/errors."""
import os
import signal
import sys

import torch
import torch.distributed as dist

import dlcoll.torch  # noqa: F401

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, which may come before the error
dist.init_process_group("dlcoll")
x = torch.ones(1000)
dist.all_reduce(x)
if dist.get_rank() == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.all_reduce(x)
except dist.DistBackendError as e:
    with open(sys.argv[1] + "/errors", "a") as f:
        f.write(f"DistBackendError: {e}\n")
    raise
