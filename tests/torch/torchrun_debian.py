"""torchrun of Debian 12's python3-torch 1.13, repaired: on Python 3.11 an IntFlag no longer yields its zero
member when iterated, so Std.from_str("0") finds nothing and no job can be started. Nothing else is changed."""
from torch.distributed.elastic.multiprocessing.api import Std

stock = Std.from_str


def from_str(text):
    found = stock(text)
    if isinstance(found, dict):
        return {rank: Std.NONE if std is None else std for rank, std in found.items()}
    return Std.NONE if found is None else found


Std.from_str = from_str

from torch.distributed.run import main  # noqa: E402  (after the repair)

if __name__ == "__main__":
    main()
