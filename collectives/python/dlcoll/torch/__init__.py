"""torch.distributed's backend "dlcoll" for tensors on the CPU.

    import torch.distributed as dist
    dist.init_process_group("dlcoll")                  # or "cpu:dlcoll,cuda:nccl"

Where the package is installed with pip, PyTorch 2.15 and later find the backend by its name; elsewhere
`import dlcoll.torch` registers it. Failures raise torch.distributed.DistBackendError with a line that names the rank.

There are two implementations with the same behaviour: a C++ extension (process_group.cc) and Python (by_ctypes.py).
The extension is used where it has been built for this Python and this PyTorch:

    python -m dlcoll.torch --build                     # needs a C++ compiler and Python's headers
"""
import importlib.util
import os
import sys

import torch
import torch.distributed as dist

__all__ = ["implementation", "register"]


def _extension_path() -> str:
    """The extension's file. Its name holds all that its binary interface depends on."""
    version = torch.__version__.split("+")[0]
    name = f"process_group-{sys.implementation.cache_tag}-torch{version}.so"
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return beside if os.path.exists(beside) else os.path.join(cache, "dlcoll", name)


def _load_extension():
    if os.environ.get("DLCOLL_TORCH") == "ctypes":
        return None
    path = _extension_path()
    if not os.path.exists(path):
        return None
    from .._lib import lib  # noqa: F401  the extension uses the library that is loaded here

    spec = importlib.util.spec_from_file_location("_process_group", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _seconds(timeout) -> float:
    return timeout.total_seconds() if hasattr(timeout, "total_seconds") else float(timeout)


_extension = _load_extension()


def implementation() -> str:
    """ "c++" or "ctypes"."""
    return "c++" if _extension else "ctypes"


def _create(options, _backend_options, backend="dlcoll"):
    args = (options.store, options.group_rank, options.group_size, _seconds(options.timeout), options.group_id,
            list(options.global_ranks_in_group), backend)
    if _extension:
        return _extension.create(*args)
    from . import by_ctypes

    return by_ctypes.create(*args)


def register() -> None:
    """Makes the backend known to torch.distributed. May be called again."""
    if not hasattr(dist.Backend, "DLCOLL"):
        dist.Backend.register_backend("dlcoll", _create, extended_api=True, devices=["cpu"])


register()
