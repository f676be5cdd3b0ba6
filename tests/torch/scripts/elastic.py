"""Trains in a world that may change, from a checkpoint of every step; ends when the file STOP exists.
At its third step each start adds a line to FOLDER/rounds: world size, nodes, restarts, steps so far.
    elastic.py FOLDER"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from leave import leave

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(4, 1))
first = 0
if os.path.exists(f"{folder}/checkpoint"):
    saved = torch.load(f"{folder}/checkpoint")
    model.module.load_state_dict(saved["model"])
    first = saved["step"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step, stop = first, False
while not stop:
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    step += 1
    t = torch.tensor([1.0, float(step), float(os.path.exists(f"{folder}/STOP"))])
    dist.all_reduce(t)
    assert t[0].item() == world and t[1].item() == world * step, (t, world, step)
    stop = t[2].item() > 0
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, f"{folder}/checkpoint~")
        os.rename(f"{folder}/checkpoint~", f"{folder}/checkpoint")
        if step == first + 3:
            with open(f"{folder}/rounds", "a") as f:
                f.write(f"{world} {os.environ['GROUP_WORLD_SIZE']} {os.environ['TORCHELASTIC_RESTART_COUNT']} {step}\n")
    time.sleep(0.01)
leave()
