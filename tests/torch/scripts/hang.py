"""Steps of gloo's all_reduce; then one rank hangs: hang.py KIND RANK

hang.py PLAN: the kind, the rank and the milliseconds of a step stand in line n of that file in round n of the job, and
PLAN.n gets the time of the hang's begin."""
import ctypes
import fcntl
import os
import signal
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

STEPS, SECONDS = 40, 4  # at least, before the hang


def step(seconds):
    time.sleep(seconds)
    dist.all_reduce(torch.ones(1000))


def take(first, second, both):
    with first:
        both.wait()
        second.acquire()


def hang(kind, pair):
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
    elif kind == "locks":
        a, b, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
        threading.Thread(target=take, args=(a, b, both), daemon=True).start()
        take(b, a, both)
    elif kind == "pipe":
        os.write(os.pipe()[1], b"x" * (1 << 20))
    elif kind == "file":
        path = tempfile.mktemp()
        with open(path, "w") as mine, open(path, "w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            fcntl.flock(mine, fcntl.LOCK_EX)
    elif kind == "recv":
        dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size())
    elif kind == "skip":
        dist.barrier()
    elif kind == "group":
        dist.all_reduce(torch.ones(1000), group=pair)
    elif kind == "interpreter":  # called with the interpreter's lock held
        ctypes.PyDLL(None).sleep(1000)
    elif kind == "kernel":  # the parent of a vfork()'s child does not go on before the child does
        if ctypes.PyDLL(None).vfork() == 0:
            while True:
                signal.pause()


def main():
    if len(sys.argv) == 2:
        number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        with open(sys.argv[1]) as plan:
            kind, rank, ms = plan.read().splitlines()[number].split()
        note = f"{sys.argv[1]}.{number}"
    else:
        kind, rank, ms, note = sys.argv[1], sys.argv[2], 50, None
    dist.init_process_group("gloo")
    pair = None
    for first in range(0, dist.get_world_size(), 2):
        group = dist.new_group([first, first + 1])
        pair = group if dist.get_rank() in (first, first + 1) else pair
    for _ in range(max(STEPS, SECONDS * 1000 // int(ms))):
        step(int(ms) / 1000)
    if dist.get_rank() == int(rank):
        if note:
            with open(note, "w") as f:
                f.write(repr(time.time()))
        hang(kind, pair)
    while True:
        step(int(ms) / 1000)


main()
