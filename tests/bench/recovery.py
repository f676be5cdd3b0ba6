"""A DDP program of bench-recovery.py: it appends "WHAT RANK NANOSECONDS PID" to a file when it has imported, has its
process group, has finished its first all_reduce, and after 50 steps and a collection of garbage, which write to most
objects of Python; then it sleeps.

    recovery.py BACKEND FILE
"""
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def stamp(what):
    line = f"{what} {os.environ['RANK']} {time.monotonic_ns()} {os.getpid()}\n"
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
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.randn(4, 100)).sum().backward()
        optimizer.step()
    gc.collect()
    stamp("trained")
    while True:
        time.sleep(0.1)


main()
