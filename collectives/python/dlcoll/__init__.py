"""libdlcoll for Python: collective operations on numpy arrays, and a backend for torch.distributed.

    import dlcoll, numpy as np
    world = dlcoll.Comm()                          # all workers of the job
    x = np.full(1000, world.rank, np.float32)
    world.all_reduce(x)                            # sum, in place
    peak = world.all_reduce(x, "max", out=np.empty_like(x))
    work = world.broadcast(x, root=0, wait=False)
    work.wait()

    torch.distributed.init_process_group("dlcoll") # see dlcoll.torch

dlcoll.h and dlcoll(3) describe the operations and what a failure leaves behind.
"""
from typing import TYPE_CHECKING

from ._lib import Error

if TYPE_CHECKING:
    from .arrays import ANY, Comm, Message, Reduction, Work, located

__all__ = ["ANY", "Comm", "Error", "Message", "Reduction", "Work", "located"]


def __getattr__(name: str):
    """numpy is imported with the first use of what needs it: dlcoll.torch works without numpy."""
    if name in __all__:
        from . import arrays

        return getattr(arrays, name)
    raise AttributeError(f"module 'dlcoll' has no attribute {name!r}")
