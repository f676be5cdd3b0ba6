#!/usr/bin/env python3
"""Runs jobs and draws what people see of them, for doc/seeing.md: folded output, dlaunchctl top, a timeline.

    examples/seeing-pictures.py [BUILD_DIR] [DIR]      (make picture: build, doc)
"""
import html
import importlib.util
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("demo_picture", os.path.join(HERE, "demo-picture.py"))
demo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(demo)

PROGRAM = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = int(os.environ["RANK"])
time.sleep(float(sys.argv[1]) - time.time())
print(f"rank {rank} of {os.environ['WORLD_SIZE']} is ready", flush=True)
if rank == 5:
    print("shard-5.bin is missing: reading it again", flush=True)

def step(batch):
    if batch == 3:
        raise RuntimeError(f"rank {rank}: loss is not a number in batch {batch}")

for batch in range(10):
    step(batch)
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def terminal(argv, seconds=None):
    """What the program prints to a terminal of 100 columns; it is ended after so many seconds."""
    pid, fd = pty.fork()
    if pid == 0:
        subprocess.run(["stty", "cols", str(demo.COLUMNS), "rows", "18"], check=True)
        os.execvp(argv[0], argv)
    data, end = b"", time.monotonic() + (seconds or 60)
    while time.monotonic() < end:
        if not select.select([fd], [], [], 0.1)[0]:
            continue
        try:
            data += os.read(fd, 65536)
        except OSError:
            break
    else:
        os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    return data.decode(errors="replace").replace("\r\n", "\n")


def write(path, lines, title):
    with open(path, "w") as f:
        f.write(demo.draw(lines, title))


def draw_fold(dlaunch, path):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("train.py", "w") as f:
            f.write(PROGRAM)
        start = time.time() + 2  # so that no worker is stopped before it has failed itself
        text = terminal([dlaunch, "--nproc_per_node", "8", "train.py", str(start)])
    text = text.replace(folder + "/", "")
    report = text.index("\n----")
    shown = [line for line in text[:report].rstrip("\n").split("\n") if "OMP_NUM_THREADS" not in line]
    write(path, ["\x1b[1m$ dlaunch --nproc_per_node 8 train.py\x1b[0m"] + shown, "One exception of eight ranks")


def start_two(dlaunch, *words):
    port = str(free_port())
    return [subprocess.Popen([dlaunch, "--nnodes", "2", "--node_rank", str(i), "--master_addr", "127.0.0.1",
                              "--master_port", port, "--nproc_per_node", "4", *words],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for i in range(2)]


def draw_top(build, dlaunch, path):
    os.chdir(os.path.dirname(build))
    train = os.path.join(os.path.basename(build), "examples/train")
    jobs = start_two(dlaunch, train, "--epochs", "1000000")
    try:
        time.sleep(3)
        text = terminal([os.path.join(build, "dlaunchctl"), "-p", str(jobs[1].pid), "top"], 3.5)
    finally:
        for job in jobs:
            job.terminate()
        for job in jobs:
            job.wait()
    frame = text.split("\x1b[H")[-1].split("\x1b[J")[0]
    lines = re.sub(r"\x1b\[[KJ]", "", frame).rstrip("\n").split("\n")
    write(path, ["\x1b[1m$ dlaunchctl top\x1b[0m"] + lines, "The screen of dlaunchctl top")


COLOURS = {"rendezvous": "#6ea8fe", "RENDEZVOUS": "#6ea8fe", "start": "#ffd166", "STARTING": "#ffd166",
           "restart": "#ff6b6b", "STOPPING": "#ff6b6b", "RUNNING": "#4d6b57", "worker": "#4d6b57",
           "all_reduce": "#8ce99a", "broadcast": "#b197fc"}


def draw_timeline(build, dlaunch, path):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "timeline.json")
        jobs = start_two(dlaunch, "--max_restarts", "1", "--timeline", file, os.path.join(build, "examples/train"),
                         "--epochs", "5", "--checkpoint", os.path.join(folder, "c"), "--crash-rank", "5",
                         "--crash-epoch", "3")
        for job in jobs:
            if job.wait() != 0:
                sys.exit("the job of the timeline failed")
        with open(file) as f:
            entries = json.load(f)["traceEvents"]
    process = {e["pid"]: e["args"]["name"] for e in entries if e["name"] == "process_name"}
    thread = {(e["pid"], e["tid"]): e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    order = sorted(thread, key=lambda k: (-k[0] if k[0] >= 1000000 else k[0], k[1] if k[1] < 1000000 else -1))
    spans = [e for e in entries if e["ph"] == "X" and (e["pid"], e["tid"]) in thread]
    last = max(e["ts"] + e["dur"] for e in spans)
    left, right, row = 190, 960, 20
    svg, y = [], 10
    before = None
    for key in order:
        if key[0] != before:
            svg.append(f'<text class="b" x="10" y="{y + 14}">{html.escape(process.get(key[0], ""))}</text>')
            before, y = key[0], y + row
        svg.append(f'<text x="24" y="{y + 14}">{html.escape(thread[key])}</text>')
        for e in sorted((e for e in spans if (e["pid"], e["tid"]) == key), key=lambda e: -e["dur"]):
            x, w = left + e["ts"] / last * (right - left), max(e["dur"] / last * (right - left), 1)
            colour = COLOURS.get(e["name"], "#5c6b8a")
            svg.append(f'<rect x="{x:.1f}" y="{y + 3}" width="{w:.1f}" height="{row - 6}" fill="{colour}"/>')
            if w > 9 * len(e["name"]) and (e["name"] == "RUNNING" or e["name"].startswith("round")):
                svg.append(f'<text x="{x + 4:.1f}" y="{y + 14}">{html.escape(e["name"])}</text>')
        y += row
    svg.append(f'<text x="{left}" y="{y + 16}">0</text>'
               f'<text x="{right - 60}" y="{y + 16}">{last / 1000:.0f} ms</text>')
    with open(path, "w") as f:
        f.write("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="975" height="{y + 30}" viewBox="0 0 975 {y + 30}">',
            "<title>A job with a restart, as --timeline writes it</title>",
            "<style>text{font:12px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d8dee9}"
            ".b{font-weight:bold;fill:#fff}</style>",
            f'<rect width="975" height="{y + 30}" rx="6" fill="#1e2430"/>', *svg, "</svg>", ""]))


def main():
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
    folder = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else "doc")
    dlaunch = os.path.join(build, "dlaunch")
    draw_top(build, dlaunch, os.path.join(folder, "top.svg"))
    draw_timeline(build, dlaunch, os.path.join(folder, "timeline.svg"))
    draw_fold(dlaunch, os.path.join(folder, "fold.svg"))


if __name__ == "__main__":
    main()
