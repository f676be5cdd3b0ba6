#!/usr/bin/env python3
"""A job with a wrong setting: rank 2 raises an exception while the other workers wait for it.

    dlaunch --nproc_per_node 4 --tee 3 --log_dir logs examples/fail.py
"""
import os
import time

rank = int(os.environ["RANK"])
print(f"rank {rank} of {os.environ['WORLD_SIZE']} is ready", flush=True)
if rank == 2:
    raise ValueError("learning rate must be positive, not -0.1")
time.sleep(60)
