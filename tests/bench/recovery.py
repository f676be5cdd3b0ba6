"""A DDP program of bench-recovery.py: it appends "WHAT ROUND RANK NANOSECONDS" to a file when it has imported, has its
process group, and has finished its first all_reduce; then it trains until it is stopped.

    recovery.py BACKEND FILE
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def stamp(what):
    line = f"{what} {os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['RANK']} {time.monotonic_ns()}\n"
    with open(sys.argv[2], "a") as f:
        f.write(line)


def main():
    if sys.argv[1] == "dlcoll":
        import dlcoll.torch  # noqa: F401  (this checkout is not installed)
    stamp("import")
    dist.init_process_group(sys.argv[1])
    stamp("group")
    model = DistributedDataParallel(torch.nn.Linear(100, 100))
    model(torch.ones(4, 100)).sum().backward()
    stamp("first")
    while True:
        time.sleep(0.1)


main()
