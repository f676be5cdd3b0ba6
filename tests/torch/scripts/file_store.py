"""A group that meets through a file, of as many ranks as WORLD_SIZE says, without MASTER_ADDR. FILE"""
import datetime
import os
import sys

import torch
import torch.distributed as dist

import dlcoll.torch  # noqa: F401

dist.init_process_group("dlcoll", init_method="file://" + sys.argv[1], rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]), timeout=datetime.timedelta(seconds=60))
x = torch.ones(1000)
dist.all_reduce(x)
group = dist.new_group([0, dist.get_world_size() - 1])
if dist.get_rank() in (0, dist.get_world_size() - 1):
    dist.all_reduce(x, group=group)
print("rank", dist.get_rank(), "has", x[-1].item(), flush=True)
dist.destroy_process_group()
