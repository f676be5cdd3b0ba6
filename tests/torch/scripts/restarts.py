"""Trains with DistributedDataParallel and a checkpoint after each of EPOCHS epochs. In each of its first KILLS starts one
rank kills itself: before a step, in the middle of the backward pass, or while rank 0 writes the checkpoint.

    restarts.py BACKEND FOLDER EPOCHS KILLS
"""
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCHES = 5


def main():
    backend, folder, epochs, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if backend == "dlcoll":
        import dlcoll.torch  # noqa: F401  (this checkout is not installed)
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(200, 10))
    # DDP sorts the gradients into other buckets after the first step of a process, which changes the order in which gloo
    # adds those of 4 ranks, unless parameters may be unused.
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first, path = 0, f"{folder}/checkpoint"
    if os.path.exists(path):
        saved = torch.load(path)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1

    def die(epoch, place):
        if start < kills and epoch >= start and rank == start % world and place == start % 3:
            os.kill(os.getpid(), signal.SIGKILL)

    for epoch in range(first, epochs):
        torch.manual_seed(1000 * epoch + rank)
        for batch in range(BATCHES):
            x = torch.randn(16, 64)
            optimizer.zero_grad()
            out = model(x)
            if batch == 2:
                die(epoch, 0)
                out.register_hook(lambda gradient: die(epoch, 1))
            torch.nn.functional.cross_entropy(out, x[:, :10].argmax(1)).backward()
            optimizer.step()
        if rank == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path + "~")
        die(epoch, 2)
        if rank == 0:
            os.rename(path + "~", path)
        dist.barrier()
    if rank == 0:
        torch.save(net.state_dict(), f"{folder}/parameters")
        print(f"trained: {start} restarts, world {world}", flush=True)
    dist.barrier()


main()
