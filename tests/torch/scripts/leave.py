"""How the scripts exit: without the shutdown of the interpreter, in which PyTorch has races, under any
launcher and none. Before 2.2 the destructor of a gloo group may hang for ever (it holds the interpreter's lock
while it joins a thread that wants the lock); with 2.15 one in twelve workers that have trained aborts
("terminate called without an active exception")."""
import os
import sys

import torch
import torch.distributed as dist


def leave():
    if dist.is_initialized() and tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 2):
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
