#!/usr/bin/env python3
"""The worker of the comparisons with torchrun: writes what it was given (arguments, environment) to a
file of its own under $CAPTURE, then ends as $CAPTURE_FAIL says.

    CAPTURE_FAIL=RANK:STARTS:STATUS    the worker with this rank exits with STATUS in its first STARTS
                                       starts (negative: kills itself with that signal); meanwhile the
                                       others wait until they are stopped
"""
import json
import os
import signal
import sys
import time

node, rank = os.environ.get("CAPTURE_NODE", "0"), int(os.environ.get("RANK", "-1"))
folder = os.environ["CAPTURE"]
with open("/proc/self/cmdline", "rb") as f:
    command = f.read().decode(errors="surrogateescape").split("\0")[:-1]
facts = {"node": int(node), "rank": rank, "when": time.monotonic(), "command": command, "argv": sys.argv,
         "env": dict(os.environ)}
start = sum(name.startswith(f"{node}.{rank}.") for name in os.listdir(folder))
path = f"{folder}/{node}.{rank}.{start}"
with open(path + "~", "w") as f:
    json.dump(facts, f)
os.rename(path + "~", path)

if os.environ.get("CAPTURE_FAIL"):
    who, starts, status = (int(n) for n in os.environ["CAPTURE_FAIL"].split(":"))
    if start < starts:
        if rank != who:
            signal.pause()
        # Wait until every worker of the job has written its file.
        deadline = time.monotonic() + 120
        while len([n for n in os.listdir(folder) if n.endswith(f".{start}")]) < int(os.environ["WORLD_SIZE"]):
            if time.monotonic() > deadline:
                sys.exit("capture.py: the other workers did not start")
            time.sleep(0.01)
        if status < 0:
            os.kill(os.getpid(), -status)
        sys.exit(status)
