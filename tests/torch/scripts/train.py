"""A typical training loop: DDP, DistributedSampler, DataLoader with workers, a checkpoint after
each epoch from which a restart goes on, @record.

    train.py CHECKPOINT [--crash-at EPOCH] [--signal N] [--loaders N]
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from leave import leave

EPOCHS = 4


@record
def main():
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint")
    p.add_argument("--crash-at", type=int, default=-1)
    p.add_argument("--signal", type=int, default=0)
    p.add_argument("--loaders", type=int, default=0)
    args = p.parse_args()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=args.loaders)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
        if rank == 0:
            print(f"attempt {attempt}: goes on with epoch {first}", flush=True)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for batch, (a, b) in enumerate(loader):
            if batch == 1 and epoch == args.crash_at and attempt == 0 and rank == world - 1:
                if args.signal:
                    os.kill(os.getpid(), args.signal)
                raise RuntimeError("the crash that was asked for")
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                       args.checkpoint + "~")
            os.rename(args.checkpoint + "~", args.checkpoint)
        dist.barrier()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item()
    losses = [None] * world
    dist.all_gather_object(losses, loss)
    assert len(set(losses)) == 1, losses
    if rank == 0:
        print(f"final loss {loss!r} world {world}", flush=True)
    leave()


main()
