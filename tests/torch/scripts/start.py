"""The tutorials' program for two nodes, run by the launcher on each of them."""
import datetime
import os

import torch
import torch.distributed as dist

from leave import leave

dist.init_process_group(backend="gloo", timeout=datetime.timedelta(seconds=40))
rank, world = dist.get_rank(), dist.get_world_size()
t = torch.ones(1) * rank
dist.all_reduce(t)
seen = {n: os.environ.get(n) for n in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")}
print(f"Hello from rank {rank} of {world}, node {os.environ['GROUP_RANK']}, sum {int(t.item())}, {seen}", flush=True)
dist.barrier()
leave()
