#!/usr/bin/env python3
"""Planted hangs (tests/lib/hang_worker.c) in jobs of two launchers: is the right rank named, and when.

    tests/bench/hang_trials.py [--trials N] [--nproc N] [--step MS] [--build DIR] [KIND ...]

Prints for each kind how often the rank that hangs was named on both nodes, and the time from the hang to
the line on the later node: median and longest. Exit status 1 if another rank was named, or none.
"""
import argparse
import datetime
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

KINDS = ["sleep", "loop", "send", "locks", "stop", "pipe", "lock"]
LINE = re.compile(r"^(\S+) dlaunch: the job hangs: (?:ranks [^;]*; the first of them, )?rank (\d+) ", re.M)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def trial(args, kind, rank):
    """Seconds until both nodes have named `rank`; None and what they printed instead."""
    folder = tempfile.mkdtemp(prefix="hang-")
    port, nodes, outputs = str(free_port()), [], []
    env = dict(os.environ, STEP_MS=str(args.step), XDG_RUNTIME_DIR=folder, XDG_STATE_HOME=folder)
    for node in range(2):
        command = [f"{args.build}/dlaunch", "--nnodes", "2", "--node_rank", str(node), "--master_port", port,
                   "--nproc_per_node", str(args.nproc), "--hang_after", "0.5", "--on_hang", "end", "--log_time",
                   "always", "--timeout", "60", f"{args.build}/tests/hang_worker", kind, str(rank), folder]
        nodes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, text=True))
    for node in nodes:
        outputs.append(node.communicate()[1])
    try:
        with open(f"{folder}/planted") as f:
            planted = float(f.read())
    except OSError:
        planted = 0
    shutil.rmtree(folder)
    found = [LINE.search(text) for text in outputs]
    if not planted or not all(m and int(m[2]) == rank for m in found):
        return None, "\n".join(outputs)
    return max(datetime.datetime.fromisoformat(m[1]).timestamp() for m in found) - planted, ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--step", type=int, default=10)
    parser.add_argument("--build", default="build")
    parser.add_argument("kinds", nargs="*", default=KINDS)
    args = parser.parse_args()
    bad = 0
    for kind in args.kinds:
        times, wrong = [], 0
        for i in range(args.trials):
            took, text = trial(args, kind, random.randrange(2 * args.nproc))
            if took is None:
                wrong += 1
                print(f"{kind}, trial {i}:\n{text}", file=sys.stderr)
            else:
                times.append(took)
        bad += wrong
        shown = f"median {statistics.median(times):.3f} s, longest {max(times):.3f} s" if times else ""
        print(f"{kind:6} right {len(times)} of {args.trials}  {shown}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
