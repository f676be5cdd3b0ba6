"""Store clients of the script, besides that of init_process_group, at the launcher's store."""
import os

import torch.distributed as dist

from leave import leave

address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
stores = [dist.TCPStore(*address, None, False) for _ in range(8)]
stores.append(dist.TCPStore(*address, world, False))
for i, store in enumerate(stores):
    scoped = dist.PrefixStore(f"own{i}", store)
    scoped.set(f"key{rank}", f"value {rank}")
    for r in range(world):
        assert scoped.get(f"key{r}") == f"value {r}".encode()
    if scoped.add("count", 1) == world:
        scoped.set("all", "here")
    scoped.wait(["all"])
dist.barrier()
print(f"rank {rank}: {len(stores)} stores of its own ok", flush=True)
leave()
