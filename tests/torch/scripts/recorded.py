"""A worker whose main is wrapped in @record: its exception must be found in the report."""
import os

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no such thing as a free lunch")


main()
