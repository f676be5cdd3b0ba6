"""Trains for ever in a world that may change: one line per round, ends when the file STOP is there.
    elastic.py FOLDER"""
import os
import sys
import time

import torch
import torch.distributed as dist

from leave import leave

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
step = 0
while True:
    t = torch.tensor([1.0, float(os.path.exists(f"{folder}/STOP"))])
    dist.all_reduce(t)
    assert t[0].item() == world
    step += 1
    if step == 3 and rank == 0:
        with open(f"{folder}/rounds", "a") as f:
            f.write(f"{world} {os.environ['GROUP_WORLD_SIZE']} {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
    if t[1].item():
        break
    time.sleep(0.01)
leave()
