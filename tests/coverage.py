#!/usr/bin/python3
"""The lines that the tests of a build with --coverage have executed, for each room: tests/coverage.py BUILD

A line that stands in two objects (a program's and a library's) counts once."""
import collections
import json
import os
import subprocess
import sys

ROOMS = ("core/", "rendezvous/", "agent/", "launcher/", "collectives/")


def main(build):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Objects that several processes wrote at once may have a count that is damaged: it is left out, with a warning.
    out = subprocess.run(["gcovr", "--root", root, "--json", "-", "--gcov-ignore-parse-errors", "--exclude-directories", ".*/obj/tests",
                          "--object-directory", build, build], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    rooms = collections.defaultdict(lambda: [0, 0])
    for file in json.loads(out)["files"]:
        if file["file"].startswith(ROOMS):
            seen = collections.defaultdict(int)
            for line in file["lines"]:
                seen[line["line_number"]] += line["count"]
            room = rooms[os.path.dirname(file["file"]) + "/"]
            room[0] += sum(map(bool, seen.values()))
            room[1] += len(seen)
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
