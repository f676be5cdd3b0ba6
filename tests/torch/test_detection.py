#!/usr/bin/env python3
"""accelerate, transformers and Lightning detect the launcher from a worker's environment: tested with the packages
themselves if they are installed, and always with a copy of their rules."""
import json
import subprocess
import sys

from jobs import PYTHON, Skip, nodes, run_checks, script, torch_version

VERSION = torch_version()
if VERSION is None:
    print(f"SKIPPED: {sys.executable} has no PyTorch")
    sys.exit(0)


def seen_by(framework, module, folder):
    """The findings of 2 x 2 workers in the order of their ranks."""
    if module and subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode != 0:
        raise Skip(f"{module} is not installed")
    env = {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    jobs = nodes(2, "--nproc_per_node", 2, script("detected.py"), framework, folder, env=env)
    text = "".join(job.wait() for job in jobs)
    found = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("SEEN ")]
    found.sort(key=lambda s: s["rank"])
    assert [(s["rank"], s["world"], s["local"]) for s in found] == [(r, 4, r % 2) for r in range(4)], found
    return found


def accelerate_detects_the_ranks(folder):
    assert all(s["sum"] == 6 for s in seen_by("accelerate", "accelerate", folder))


def transformers_detects_the_ranks(folder):
    seen_by("transformers", "transformers", folder)


def lightning_detects_torchelastic(folder):
    found = seen_by("lightning", "pytorch_lightning", folder)
    assert [s["node"] for s in found] == [0, 0, 1, 1] and all(s["creates"] for s in found), found
    assert all(s["master"] == found[0]["master"] for s in found), found


def fabric_detects_the_ranks(folder):
    found = seen_by("fabric", "lightning_fabric", folder)
    assert [(s["node"], s["sum"]) for s in found] == [(0, 6), (0, 6), (1, 6), (1, 6)], found


def rules_without_the_packages(folder):
    found = seen_by("rules", None, folder)
    assert all(s["torchelastic"] and s["accelerate"] and s["transformers"] for s in found), found
    assert [s["node"] for s in found] == [0, 0, 1, 1], found


CHECKS = [accelerate_detects_the_ranks, transformers_detects_the_ranks, lightning_detects_torchelastic,
          fabric_detects_the_ranks, rules_without_the_packages]

if __name__ == "__main__":
    run_checks("PyTorch %d.%d" % VERSION, CHECKS)
