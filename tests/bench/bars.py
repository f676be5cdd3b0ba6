"""What the benches share: bars, which are printed last, and peers that are not installed."""
import os
import shutil
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
TORCHRUN = ["/usr/bin/python3", f"{HERE}/../torch/torchrun_debian.py"]
_bars = []


def bar(what, value, limit, unit="", digits=1):
    """value is to be at most limit."""
    _bars.append((value <= limit, "bar: %s: %.*f%s, at most %.*f%s" % (what, digits, value, unit, digits, limit, unit)))


def bar_fact(what, fact, text):
    _bars.append((bool(fact), f"bar: {what}: {text}"))


def print_bars():
    """Returns the exit status: 1 when one was missed."""
    print()
    for met, text in _bars:
        print(f"{text} ({'met' if met else 'missed'})")
    return 0 if all(met for met, _ in _bars) else 1


def find_peers(names):
    """Those of hydra, mpirun and torchrun that are installed; a line for each that is not."""
    here = {
        "hydra": shutil.which("mpiexec.hydra"),
        "mpirun": shutil.which("mpirun.openmpi"),
        "torchrun": subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed"],
                                   capture_output=True).returncode == 0,
    }
    for name in names:
        if not here[name]:
            print(f"SKIPPED: {name} is not installed (make deps-bench)")
    return [name for name in names if here[name]]
