#!/usr/bin/python3
"""The lines that the tests of a build with --coverage have executed, for each room: tests/coverage.py BUILD

A line that stands in two objects (a program's and a library's) counts once."""
import collections
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ("core/", "rendezvous/", "agent/", "launcher/", "collectives/")


def main(build):
    counts = [os.path.join(d, f) for d, _, files in os.walk(build) for f in files if f.endswith(".gcda")]
    lines = collections.defaultdict(int)  # by file and number
    for at in range(0, len(counts), 64):
        out = subprocess.run(["gcov", "--json-format", "--stdout", *counts[at:at + 64]], stdout=subprocess.PIPE, check=True).stdout
        for unit in out.splitlines():
            for file in json.loads(unit)["files"]:
                name = os.path.relpath(os.path.join(ROOT, file["file"]), ROOT)
                if name.startswith(ROOMS):
                    for line in file["lines"]:
                        lines[name, line["line_number"]] += line["count"]
    rooms = collections.defaultdict(lambda: [0, 0])
    for (name, _), count in lines.items():
        room = rooms[os.path.dirname(name) + "/"]
        room[0] += count > 0
        room[1] += 1
    if not rooms:
        sys.exit(f"{build} holds no counts: was it built by `make coverage`?")
    rooms["all"] = [sum(column) for column in zip(*rooms.values())]
    print(f"{'room':<28}{'executed':>10}{'lines':>8}")
    for name, (executed, lines) in sorted(rooms.items(), key=lambda room: (room[0] == "all", room[0])):
        print(f"{name:<28}{executed / lines:>10.1%}{lines:>8}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
