"""Test cases that all ranks of a job run together.

Rank 0 prints a line for each case: "ok CASE" or "FAILED CASE: reason", and the exit status is 0 if all are ok. A case
that hangs ends the rank after a time, with the stacks of its threads.
"""
import faulthandler
import sys
import traceback

import torch.distributed as dist

CASE_SECONDS = 120


def run(cases):
    """cases: name -> function. To be called in the default group."""
    failures = 0
    for name, case in cases.items():
        trouble = ""
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        try:
            case()
        except Exception as e:  # noqa: BLE001  every failure is reported
            trouble = f"rank {dist.get_rank()}: {type(e).__name__}: {e}"
            traceback.print_exc()
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, trouble)
        wrong = "; ".join(t for t in told if t)
        failures += bool(wrong)
        if dist.get_rank() == 0:
            print(f"FAILED {name}: {wrong}" if wrong else f"ok {name}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{len(cases) - failures} passed, {failures} failed", flush=True)
    sys.exit(bool(failures))


def chosen(module, names):
    """The functions case_NAME of a program, all or those named."""
    return {n: module["case_" + n] for n in names or [n[5:] for n in module if n.startswith("case_")]}
