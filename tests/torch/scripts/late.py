"""monitored_barrier() must name the rank that does not come."""
import datetime
import sys
import time

import torch.distributed as dist

from leave import leave

dist.init_process_group("gloo")
store = dist.TCPStore(__import__("os").environ["MASTER_ADDR"], int(__import__("os").environ["MASTER_PORT"]), None, False)
if dist.get_rank() == 1:
    store.wait(["rank 0 has given up"])
    time.sleep(0.1)
    sys.exit(0)
try:
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=True)
    print("the barrier was passed", flush=True)
except RuntimeError as why:
    print(f"rank {dist.get_rank()}: {why}", flush=True)
if dist.get_rank() == 0:
    store.set("rank 0 has given up", "1")
leave()
