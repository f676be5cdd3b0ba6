"""torch.distributed's backend "dlcoll" for tensors on the CPU.

    import torch.distributed as dist
    dist.init_process_group("dlcoll")                  # or "cpu:dlcoll,cuda:nccl"

Where the package is installed with pip, PyTorch 2.15 and later find the backend by its name; elsewhere
`import dlcoll.torch` registers it. Failures raise torch.distributed.DistBackendError with a line that names the rank.

The backend is a C++ extension (process_group.cc). The first process that needs it compiles it for its Python and its
PyTorch (extension.py), which takes a C++ compiler, Python's headers and about a minute;
`python -m dlcoll.torch --build` does so before.
"""
import atexit
import os
import sys

import torch.distributed as dist

from . import extension

__all__ = ["implementation", "register"]


def implementation() -> str:
    """ "c++": there is no other one any more."""
    return "c++"


def _seconds(timeout) -> float:
    return timeout.total_seconds() if hasattr(timeout, "total_seconds") else float(timeout)


_loaded = None


def _load():
    global _loaded
    if _loaded is None:
        if os.environ.get("DLCOLL_TORCH") == "ctypes":
            print("dlcoll: DLCOLL_TORCH=ctypes: there is no such implementation any more, the C++ extension is used",
                  file=sys.stderr, flush=True)
        _loaded = extension.load()
        atexit.register(_loaded.finish_all)
    return _loaded


def _create(options, _backend_options, backend="dlcoll"):
    return _load().create(options.store, options.group_rank, options.group_size, _seconds(options.timeout),
                          options.group_id, list(options.global_ranks_in_group), backend)


def register() -> None:
    """Makes the backend known to torch.distributed. May be called again."""
    if not hasattr(dist.Backend, "DLCOLL"):
        dist.Backend.register_backend("dlcoll", _create, extended_api=True, devices=["cpu"])


register()
