"""A script for torch.distributed.launch: its argparse accepts --local_rank and --local-rank."""
import argparse
import os

import torch
import torch.distributed as dist

from leave import leave

p = argparse.ArgumentParser()
p.add_argument("--local_rank", "--local-rank", type=int, default=-1)
p.add_argument("--epochs", type=int, default=0)
args = p.parse_args()
assert args.local_rank == int(os.environ["LOCAL_RANK"]), args
dist.init_process_group(backend="gloo", init_method="env://")
t = torch.tensor([float(args.local_rank)])
dist.all_reduce(t)
print(f"local rank {args.local_rank} epochs {args.epochs} sum {int(t.item())}", flush=True)
leave()
