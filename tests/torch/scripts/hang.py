"""Steps of gloo's all_reduce; then rank RANK hangs as KIND says: hang.py KIND RANK"""
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist


def step():
    time.sleep(0.05)
    dist.all_reduce(torch.ones(1000))


def hang(kind):
    if kind == "sleep":
        time.sleep(1000)
    elif kind == "loop":
        while True:
            pass
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif kind == "pipe":
        os.write(os.pipe()[1], b"x" * (1 << 20))
    elif kind == "recv":
        dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size())


dist.init_process_group("gloo")
for _ in range(80):
    step()
if dist.get_rank() == int(sys.argv[2]):
    hang(sys.argv[1])
while True:
    step()
