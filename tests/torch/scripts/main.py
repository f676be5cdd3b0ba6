"""The tutorials' first program: two processes, one tensor sent. Run by hand, one process in a terminal:
    MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 python main.py"""
import os

import torch
import torch.distributed as dist

from leave import leave


def run(rank, size):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    else:
        dist.recv(tensor=tensor, src=0)
    print("Rank", rank, "of", size, "has data", tensor[0].item(), flush=True)
    group = dist.new_group([0, 1])
    tensor = torch.ones(1)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
    print("Rank", rank, "sum", tensor[0].item(), flush=True)


dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
run(dist.get_rank(), dist.get_world_size())
dist.barrier()
leave()
