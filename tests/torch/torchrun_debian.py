"""torchrun of Debian 12's python3-torch 1.13, mended: on Python 3.11 an IntFlag no longer yields its zero
member when iterated, so Std.from_str("0") finds nothing and no job can be started. The rest is stock."""
import torch.distributed.elastic.multiprocessing.api as api


def to_map(value, local_world_size):
    value = api.Std.NONE if value is None else value
    if isinstance(value, api.Std):
        return {i: value for i in range(local_world_size)}
    return {i: value.get(i, api.Std.NONE) for i in range(local_world_size)}


api.to_map = to_map

from torch.distributed.run import main  # noqa: E402  (after the repair)

if __name__ == "__main__":
    main()
