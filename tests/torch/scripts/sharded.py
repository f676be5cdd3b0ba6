"""FSDP on CPUs, of both kinds, and torch.distributed.checkpoint: train, save, load into a fresh model, compare."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from leave import leave

mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
rank = dist.get_rank()
torch.manual_seed(10 + rank)
x = torch.randn(64, 8)


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def sharded():
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def train(net):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses


train(FullyShardedDataParallel(model(), device_id=torch.device("cpu")))
net = sharded()
train(net)
dcp.save({"model": net.state_dict()}, checkpoint_id=sys.argv[1])
other = sharded()
state = {"model": other.state_dict()}
dcp.load(state, checkpoint_id=sys.argv[1])
other.load_state_dict(state["model"])
assert torch.equal(other(x), net(x))
dist.barrier()
print(f"rank {rank}: sharded training and checkpoint are right", flush=True)
leave()
