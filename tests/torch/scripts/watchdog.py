"""A worker that limits its steps by PyTorch's file timer; on the first start rank 1 exceeds the time of a step."""
import os
import sys
import time

import torch.distributed.elastic.timer as timer

rank, first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
for step in range(3):
    with timer.expires(after=600):
        pass
with timer.expires(after=0.5, scope="slow step"):
    if first and rank == "1":
        time.sleep(600)
print(f"rank {rank}: all steps in time", flush=True)
sys.exit(0)
