"""Writes what a program of PyTorch sees of its process to FOLDER/RANK, as JSON.

    seen.py FOLDER
"""
import atexit
import json
import logging
import os
import sys
import threading
import warnings

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def threads():
    return len(os.listdir("/proc/self/task"))


def main():
    before = threads()
    seeds = [torch.initial_seed(), torch.randint(1 << 62, (1,)).item(), int(numpy.random.randint(1 << 30))]
    torch.manual_seed(1)
    same = [torch.rand(3).tolist(), (torch.randn(300, 300) @ torch.ones(300, 300))[0, 0].item()]
    dist.init_process_group("gloo")
    net = DistributedDataParallel(torch.nn.Linear(50, 50))
    torch.optim.Adam(net.parameters())
    net(torch.ones(4, 50)).sum().backward()
    with open("/proc/self/status") as f:
        status = [line.strip() for line in f if line.startswith(("SigB", "SigI", "SigC", "Shd", "Seccomp", "NoNewPrivs", "Threads", "Umask"))]
    facts = {
        "threads at first": before, "number of threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "parallel": torch.__config__.parallel_info(), "cpu": torch.backends.cpu.get_cpu_capability(), "same": same,
        "cuda": [torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
        "default": [str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_grad_enabled(),
                    torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()],
        "gradient": net.module.weight.grad.sum().item(), "environ": dict(os.environ), "argv": sys.argv, "path": sys.path,
        "cpus": sorted(os.sched_getaffinity(0)), "handlers": len(logging.getLogger().handlers), "exit": atexit._ncallbacks(),
        "filters": len(warnings.filters), "main": [threading.current_thread().name, threading.active_count()],
        "status": status, "dynamo": "torch._dynamo" in sys.modules, "start": torch.multiprocessing.get_start_method(),
        "loader": [x.tolist() for x in torch.utils.data.DataLoader(torch.arange(4), batch_size=2, num_workers=1)],
    }
    dist.barrier()
    with open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as f:
        json.dump({"seeds": seeds, "facts": facts}, f)
    dist.destroy_process_group()


main()
