"""What test programs in Python share: a failure, the wait for a fact, children that end with their parent."""
import ctypes
import random
import re
import signal
import socket
import time

PR_SET_PDEATHSIG = 1
LIMIT = 60  # seconds that anything may take on a busy machine


class Failure(AssertionError):
    pass


def wait_for(what, condition, seconds=LIMIT):
    """Returns the first true value of condition()."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise Failure(f"{what}: not within {seconds} s")


def free_port():
    """A port below the range from which the kernel assigns ports, so that no other process gets it by chance."""
    while True:
        with socket.socket() as s:
            port = random.SystemRandom().randrange(20000, 32000)
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def sanitizer(build):
    """The sanitizers of the programs in this folder: "thread", "address,undefined"; "" without."""
    with open(f"{build}/.flags") as f:
        found = re.search(r"-fsanitize=([a-z,]+)", f.read())
    return found[1] if found else ""


def die_with_parent():
    """For subprocess's preexec_fn."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
