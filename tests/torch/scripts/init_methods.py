"""init_process_group by env://, tcp:// or file://, as the first argument selects."""
import os
import sys

import torch
import torch.distributed as dist

from leave import leave

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
where = sys.argv[2] if len(sys.argv) > 2 else ""
options = {
    "env": dict(init_method="env://"),
    "tcp": dict(init_method=f"tcp://{address}", rank=rank, world_size=world),
    "query": dict(init_method=f"tcp://{address}?rank={rank}&world_size={world}"),
    "file": dict(init_method=f"file://{where}", rank=rank, world_size=world),
    # The script's own rendezvous, at a port that the launcher does not serve.
    "private": dict(init_method=f"tcp://127.0.0.1:{where}", rank=rank, world_size=world),
}[sys.argv[1]]
dist.init_process_group("gloo", **options)
t = torch.ones(4) * (rank + 1)
dist.all_reduce(t)
assert t.tolist() == [world * (world + 1) / 2] * 4
dist.barrier()
print(f"{sys.argv[1]} rank {rank} of {world} ok", flush=True)
leave()
