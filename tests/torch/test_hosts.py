#!/usr/bin/env python3
"""Real PyTorch on several hosts (network namespaces), one of them with Debian's host name: 127.0.1.1."""
import sys
import time

from hosts import Hosts
from jobs import BACKEND_ENV, HERE, PYTHON, Skip, build_backend, count, rounds, run_checks, script, torch_version, until

VERSION = torch_version()
if VERSION is None:
    print(f"SKIPPED: {sys.executable} has no PyTorch")
    sys.exit(0)
NAMES = "GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME TP_SOCKET_IFNAME"
TORCHRUN = [HERE + "/torchrun_debian.py"] if VERSION < (2,) else ["-m", "torch.distributed.run"]


def start(hosts, *args, n=2, **more):
    return [hosts.dlaunch(i, "--nnodes", n, "--node_rank", i, "--master_addr", hosts.address(0), *args, **more)
            for i in range(n)]


def hosts_with_correct_names(folder):
    with Hosts(2) as hosts:
        jobs = start(hosts, "--nproc_per_node", 2, script("start.py"))
        text = "".join(job.wait() for job in jobs)
        assert count(text, r"Hello from rank \d of 4, node [01], sum 6, .*'GLOO_SOCKET_IFNAME': None") == 4, text
        for job in jobs:
            assert "SOCKET_IFNAME" not in job.text("err"), job.everything()


def both_names_are_127_0_1_1(folder):
    with Hosts(2, bad=(0, 1)) as hosts:
        jobs = start(hosts, "--nproc_per_node", 2, script("start.py"))
        text = "".join(job.wait() for job in jobs)
        told = "{'GLOO_SOCKET_IFNAME': 'eth0', 'NCCL_SOCKET_IFNAME': '=eth0', 'TP_SOCKET_IFNAME': 'eth0'}"
        assert text.count(told) == 4 and count(text, "of 4, node [01], sum 6") == 4, text
        for i, job in enumerate(jobs):
            line = f"this host's name, node{i}, resolves to 127.0.1.1: the workers are told to use eth0 ({NAMES})"
            assert job.text("err").count(line) == 1, job.everything()


def torchrun_fails_with_127_0_1_1(folder):
    """torchrun still fails with such a host name; if not, dlaunch need not set the interface any more."""
    with Hosts(2, bad=(0, 1)) as hosts:
        jobs = [hosts.start(i, PYTHON, *TORCHRUN, "--nnodes", 2, "--node_rank", i, "--master_addr", hosts.address(0),
                            "--master_port", 29500, script("start.py")) for i in range(2)]
        until(lambda: any("127.0.1.1" in job.text("err") for job in jobs), jobs[0], "it works")
        assert not any("Hello" in job.text() for job in jobs)


def interfaces_set_by_the_user_are_kept(folder):
    with Hosts(2, bad=(0, 1)) as hosts:
        env = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth", "TP_SOCKET_IFNAME": "eth0"}
        jobs = start(hosts, script("start.py"), env=env)
        text = "".join(job.wait() for job in jobs)
        assert text.count("'NCCL_SOCKET_IFNAME': 'eth'") == 2, text
        for job in jobs:
            assert "SOCKET_IFNAME" not in job.text("err"), job.everything()


def one_of_three_names_is_127_0_1_1_by_c10d(folder):
    with Hosts(3, bad=(1,)) as hosts:
        jobs = [hosts.dlaunch(i, "--nnodes", 3, "--rdzv_backend", "c10d", "--rdzv_endpoint", "node0", "--rdzv_id", "job",
                              script("start.py")) for i in range(3)]
        text = "".join(job.wait() for job in jobs)
        assert count(text, r"of 3, node \d, sum 3") == 3, text
        assert text.count("'GLOO_SOCKET_IFNAME': 'eth0'") == 1, text
        assert "this host's name, node1, resolves to 127.0.1.1" in jobs[1].text("err"), jobs[1].everything()


def training_survives_a_host_that_is_cut_off(folder):
    """1:3 hosts, one is cut off: the others continue the training in a world of two."""
    with Hosts(3, bad=(0, 1, 2)) as hosts:
        # A long time: while three workers import PyTorch at once, heartbeats may be late.
        conf = "last_call_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=4"
        jobs = [hosts.dlaunch(i, "--nnodes", "1:3", "--rdzv_backend", "c10d", "--rdzv_endpoint", "node0", "--rdzv_conf", conf,
                              "--max_restarts", 9, script("elastic.py"), folder) for i in range(3)]

        def expect(n):
            until(lambda: [world for world, *_ in rounds(folder)][-1:] == [n], jobs[0], f"no world of {n}")

        expect(3)
        start_s = time.monotonic()
        hosts.cut(2)
        expect(2)
        print(f"a host cut off: the training goes on after {time.monotonic() - start_s:.1f} s")
        open(folder + "/STOP", "w").close()
        for job in jobs[:2]:
            job.wait()
        steps = [step for *_, step in rounds(folder)]
        assert steps == sorted(set(steps)), rounds(folder)


def a_group_meets_through_a_file(folder):
    """Nothing says where rank 0 is, and its host has an address, too, that leads nowhere from the other host."""
    if VERSION < (2, 9):
        raise Skip("the backend dlcoll is for PyTorch 2.9 and later")
    build_backend()
    with Hosts(2, bad=(0, 1)) as hosts:
        hosts.start(0, "ip", "link", "add", "only0", "type", "bridge").wait()
        hosts.start(0, "ip", "addr", "add", "10.80.0.1/24", "dev", "only0").wait()
        hosts.start(0, "ip", "link", "set", "only0", "up").wait()
        jobs = [hosts.start(rank // 2, PYTHON, script("file_store.py"), folder + "/meeting",
                            env={**BACKEND_ENV, "RANK": str(rank), "WORLD_SIZE": "4"}) for rank in range(4)]
        text = "".join(job.wait() for job in jobs)
        assert count(text, r"rank [03] has 8\.0") == 2 and count(text, r"rank [12] has 4\.0") == 2, text


CHECKS = [hosts_with_correct_names, both_names_are_127_0_1_1, torchrun_fails_with_127_0_1_1, interfaces_set_by_the_user_are_kept,
          one_of_three_names_is_127_0_1_1_by_c10d, a_group_meets_through_a_file, training_survives_a_host_that_is_cut_off]

if __name__ == "__main__":
    run_checks("PyTorch %d.%d" % VERSION, CHECKS)
