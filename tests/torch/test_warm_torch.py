#!/usr/bin/env python3
"""PyTorch programs that are killed and start again, warm and cold: the result of a training, and what a program sees.

RESTARTS=20 restarts of the warm trainings; COLD_RESTARTS=3 of those with cold starts.
"""
import json
import os
import re
import sys

from jobs import BACKEND_ENV, PYTHON, SLOW, build_backend, count, dlaunch, nodes, run_checks, script, torch_version

VERSION = torch_version()
if VERSION is None:
    print(f"SKIPPED: {sys.executable} has no PyTorch")
    sys.exit(0)
RESTARTS, COLD_RESTARTS = int(os.environ.get("RESTARTS", "20")), int(os.environ.get("COLD_RESTARTS", "3"))
SLOW_START = 60  # seconds that a cold start of PyTorch may take on a busy machine


def train(folder, backend, warm, restarts, epochs):
    """On 2 launchers with 2 workers; returns the file of the parameters."""
    os.makedirs(folder)
    more = ["--verbose", "--progress_time", "0", "--max_restarts", restarts, "--warm", warm]
    jobs = nodes(2, "--nproc_per_node", 2, *more, script("restarts.py"), backend, folder, epochs, restarts, env=BACKEND_ENV)
    text = "".join(job.wait(seconds=SLOW + restarts * SLOW_START) for job in jobs)
    assert f"trained: {restarts} restarts, world 4" in text, text + jobs[0].text("err")
    begun_warm = sum(count(job.text("err"), ", warm") for job in jobs)
    # a worker that is killed before the warm interpreters are ready is followed by a cold one
    assert begun_warm >= restarts if warm == "auto" else begun_warm == 0, f"{begun_warm} workers began warm"
    with open(f"{folder}/parameters", "rb") as f:
        return f.read()


def equal_parameters(folder, backend):
    epochs = RESTARTS + 2
    whole = train(f"{folder}/whole", backend, "off", 0, epochs)
    assert train(f"{folder}/warm", backend, "auto", RESTARTS, epochs) == whole, f"{RESTARTS} warm restarts"
    assert train(f"{folder}/cold", backend, "off", COLD_RESTARTS, epochs) == whole, f"{COLD_RESTARTS} cold restarts"


def restarts_with_gloo_change_no_bit(folder):
    equal_parameters(folder, "gloo")


def restarts_with_dlcoll_change_no_bit(folder):
    build_backend()
    equal_parameters(folder, "dlcoll")


def a_program_sees_the_same(folder):
    """In the first round, which is cold with --warm off and else warm, with all it finds of PyTorch."""
    seen = {}
    for warm in ("off", "auto"):
        os.mkdir(f"{folder}/out")
        job = dlaunch("--verbose", "--nproc_per_node", 2, "--max_restarts", 1, "--warm", warm, script("seen.py"),
                      folder + "/out")
        job.wait()
        assert count(job.text("err"), ", warm") == (2 if warm == "auto" else 0), job.everything()
        for rank in (0, 1):
            with open(f"{folder}/out/{rank}") as f:
                seen[warm, rank] = json.load(f)
        os.rename(f"{folder}/out", f"{folder}/{warm}")
        assert all(a != b for a, b in zip(seen[warm, 0]["seeds"], seen[warm, 1]["seeds"])), "the ranks have one random state"
    for rank in (0, 1):
        cold, warm = (lines(seen[how, rank]["facts"]) for how in ("off", "auto"))
        assert cold == warm, "\n".join(f"- {a}\n+ {b}" for a, b in zip(cold, warm) if a != b)


def lines(facts):
    """Without what is different in each job."""
    text = json.dumps(facts, indent=0, sort_keys=True)
    text = re.sub(r'((PORT|_FD|RUN_ID)": ")[^"]*', r"\1N", text)
    return re.sub(r"(/dlaunch\.|torchelastic_dlaunch_)[-\w]+", r"\1N", text).split("\n")


CHECKS = [a_program_sees_the_same, restarts_with_gloo_change_no_bit]
if VERSION >= (2, 9):
    CHECKS.append(restarts_with_dlcoll_change_no_bit)

if __name__ == "__main__":
    run_checks("warm starts, PyTorch %d.%d" % VERSION, CHECKS)
