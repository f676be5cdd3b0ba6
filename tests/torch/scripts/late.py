"""monitored_barrier() must name the rank that does not arrive."""
import datetime
import os

import torch.distributed as dist

from leave import leave

dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
dist.barrier()  # start together: from here on only rank 1 is late
if rank == 1:
    store.wait(["rank 0 has given up"])
else:
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=5), wait_all_ranks=True)
        print("the barrier was passed", flush=True)
    except RuntimeError as why:
        print(f"rank {rank}: {why}", flush=True)
if rank == 0:
    store.set("rank 0 has given up", "1")
leave()
