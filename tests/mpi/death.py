"""The death of a rank, timed: for the test of MPI programs and their bench."""
import os
import re
import select
import signal
import time


def pids_of(launchers, n, end):
    """The pids that the ranks of `program wait` print when all of them have begun."""
    texts = {p.stdout.fileno(): b"" for p in launchers}
    pids = {}
    while len(pids) < n:
        ready, _, _ = select.select(list(texts), [], [], max(0, end - time.monotonic()))
        assert ready, f"only ranks {sorted(pids)} of {n} have begun in time"
        for fd in ready:
            more = os.read(fd, 65536)
            assert more, f"the job ended; only ranks {sorted(pids)} of {n} had begun"
            texts[fd] += more
            pids.update((int(r), int(pid)) for r, pid in re.findall(rb"^rank (\d+) is process (\d+)\n", texts[fd], re.M))
    return pids


def kill_a_rank(launchers, n, limit_s):
    """Kills the last of n ranks. Returns the seconds until all have ended."""
    end = time.monotonic() + limit_s
    fds = [os.pidfd_open(pid) for _, pid in sorted(pids_of(launchers, n, end).items())]
    try:
        begin = time.monotonic()
        signal.pidfd_send_signal(fds[-1], signal.SIGKILL)
        for fd in fds:
            ready, _, _ = select.select([fd], [], [], max(0, end - time.monotonic()))
            assert ready, "ranks are left"
        return time.monotonic() - begin
    finally:
        for fd in fds:
            os.close(fd)
