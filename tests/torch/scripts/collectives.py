"""Every collective and point-to-point operation of a default group, as the tutorials write them."""
import math
import os

import torch
import torch.distributed as dist

from leave import leave

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])
total = world * (world + 1) // 2
mine = lambda: torch.full((1000,), float(rank + 1))


def same(tensor, value):
    assert torch.all(tensor == value), (rank, tensor[:4], value)


# --- collectives
t = mine()
dist.all_reduce(t)
same(t, total)
for op, value in ((dist.ReduceOp.MAX, world), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.PRODUCT, math.factorial(world))):
    t = mine()
    dist.all_reduce(t, op=op)
    same(t, value)
t = mine()
dist.broadcast(t, src=world - 1)
same(t, world)
t = mine()
dist.reduce(t, dst=0)
if rank == 0:
    same(t, total)
parts = [torch.zeros(1000) for _ in range(world)]
dist.all_gather(parts, mine())
for r in range(world):
    same(parts[r], r + 1)
parts = [torch.zeros(1000) for _ in range(world)] if rank == 0 else None
dist.gather(mine(), parts, dst=0)
if rank == 0:
    for r in range(world):
        same(parts[r], r + 1)
t = torch.zeros(3)
dist.scatter(t, [torch.full((3,), float(r)) for r in range(world)] if rank == 0 else None, src=0)
same(t, rank)
t = torch.zeros(world)
dist.all_to_all_single(t, torch.full((world,), float(rank)))
assert t.tolist() == list(range(world)), t
if hasattr(dist, "all_gather_into_tensor") and hasattr(dist, "ReduceScatterOptions"):
    try:
        t = torch.zeros(world)
        dist.all_gather_into_tensor(t, torch.tensor([float(rank)]))
        assert t.tolist() == list(range(world)), t
        t = torch.zeros(1)
        dist.reduce_scatter_tensor(t, torch.ones(world))
        same(t, world)
    except RuntimeError as why:  # gloo of 1.13 supports neither
        assert "gloo" in str(why).lower() or "support" in str(why), why
dist.barrier()
dist.monitored_barrier()
work = dist.all_reduce(t := mine(), async_op=True)
work.wait()
same(t, total)

# --- objects
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
assert [o["rank"] for o in objects] == list(range(world)), objects
objects = [{"from": rank}, "x" * 100000] if rank == 0 else [None, None]
dist.broadcast_object_list(objects, src=0)
assert objects[0] == {"from": 0} and len(objects[1]) == 100000
objects = [None] * world if rank == 0 else None
dist.gather_object(rank * "x", objects, dst=0)
assert rank != 0 or objects == [r * "x" for r in range(world)], objects
objects = [None]
dist.scatter_object_list(objects, [{"to": r} for r in range(world)] if rank == 0 else None, src=0)
assert objects == [{"to": rank}], objects

# --- point to point: a ring, blocking and not
if world > 1:
    right, left = (rank + 1) % world, (rank - 1) % world
    t = torch.zeros(10)
    if rank % 2 == 0:
        dist.send(mine()[:10], right)
        dist.recv(t, left)
    else:
        dist.recv(t, left)
        dist.send(mine()[:10], right)
    same(t, left + 1)
    t = torch.zeros(1 << 20)
    out = dist.isend(torch.full((1 << 20,), float(rank)), right, tag=7)
    dist.irecv(t, left, tag=7).wait()
    out.wait()
    same(t, left)
    t = torch.zeros(10)
    both = [dist.P2POp(dist.isend, torch.full((10,), float(rank)), right), dist.P2POp(dist.irecv, t, left)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    same(t, left)
    t = torch.zeros(1)
    if rank == 0:
        sources = sorted(dist.recv(t) for _ in range(world - 1))
        assert sources == list(range(1, world)), sources
    else:
        dist.send(torch.ones(1), 0)

# --- groups
if world > 1:
    group = dist.new_group([0, 1])
    t = torch.ones(1)
    if rank in (0, 1):
        dist.all_reduce(t, group=group)
        same(t, 2)
    groups = [dist.new_group([r for r in range(world) if r % 2 == half]) for half in range(2)]
    t = torch.ones(1)
    dist.all_reduce(t, group=groups[rank % 2])
    same(t, (world + 1 - rank % 2) // 2)
dist.barrier()
print(f"rank {rank} of {world}: all collectives are right", flush=True)
leave()
