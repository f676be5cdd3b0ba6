"""Real PyTorch against the workers' store, whatever version is installed.

    BUILD=build python3 tests/torch/store_peer.py    (/usr/bin/python3 for Debian's python3-torch)

  * PyTorch's clients against our servers (libuv and thread): every method they have, waits, time-outs,
    a client that is killed, and the same calls against PyTorch's own server: the answers must agree;
  * 1,000 clients that come at once; waits that are cancelled while the key comes;
  * init_process_group with gloo, all_reduce, new_group, in several processes, through our store;
  * our clients against PyTorch's own servers (2.5 and later).

Prints one line per check and a summary as Check prints it; one line "SKIPPED: ..." without torch.
"""
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

from jobs import BUILD, HERE, summary, time_is_up

LIMIT = datetime.timedelta(seconds=240)

try:
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore
except ImportError as why:
    print("SKIPPED: PyTorch cannot be imported by %s: %s" % (sys.executable, why))
    sys.exit(0)

VERSION = tuple(int(n) for n in torch.__version__.split("+")[0].replace("a", ".").split(".")[:2])
LEGACY_113 = VERSION < (2, 1)


class Server:
    """A server of dlaunch."""

    def __init__(self, *options):
        argv = [BUILD + "/tests/bench/store_serve", *options]
        if LEGACY_113:
            argv.append("--legacy-113")
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(120) == 0, "the server did not end well"


def client(port, timeout=LIMIT):
    return TCPStore("127.0.0.1", port, None, False, timeout)


def answer_of(call):
    """The value, or only that the call failed, because error texts differ between versions."""
    try:
        value = call()
        return sorted(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value
    except Exception:
        return "failed"


def every_method(store):
    """(name, answer) of a fixed sequence of calls."""
    has = lambda name: hasattr(store, name)
    brief = datetime.timedelta(milliseconds=100)
    calls = [
        ("set", lambda: store.set("k", "v")),
        ("get", lambda: store.get("k")),
        ("set empty", lambda: store.set("empty", "")),
        ("get empty", lambda: store.get("empty")),
        ("add", lambda: store.add("n", 5)),
        ("add negative", lambda: store.add("n", -8)),
        ("get number", lambda: store.get("n")),
        ("cas present, equal", lambda: store.compare_set("k", "v", "w")),
        ("cas present, other", lambda: store.compare_set("k", "v", "x")),
        ("cas missing, empty", lambda: store.compare_set("new", "", "first")),
        ("cas missing, not empty", lambda: store.compare_set("missing", "what", "x")),
        ("num_keys", lambda: store.num_keys()),
        ("delete", lambda: store.delete_key("k")),
        ("delete again", lambda: store.delete_key("k")),
        ("num_keys less", lambda: store.num_keys()),
        ("wait there", lambda: store.wait(["n", "new"])),
        ("wait twice", lambda: store.wait(["n", "n"])),
        ("large", lambda: (store.set("large", "x" * 5000000), len(store.get("large")))),
        ("binary", lambda: (store.set("bin", bytes(range(1, 128)).decode()), store.get("bin"))),
    ]
    if has("append"):
        calls += [
            ("append new", lambda: (store.append("a", "1"), store.get("a"))),
            ("append", lambda: (store.append("a", "23"), store.get("a"))),
            ("multi_set", lambda: store.multi_set(["m1", "m2"], ["one", ""])),
            ("multi_get", lambda: store.multi_get(["m2", "m1", "n"])),
            ("wait in vain", lambda: store.wait(["never"], brief)),
            ("after it", lambda: store.get("n")),
        ]
    if has("check"):
        calls += [("check", lambda: store.check(["n", "new"])), ("check missing", lambda: store.check(["n", "zz"]))]
    if has("queue_push"):
        calls += [
            ("queue_push", lambda: (store.queue_push("q", "1"), store.queue_push("q", "2"))),
            ("queue_len", lambda: store.queue_len("q")),
            ("queue_pop", lambda: (store.queue_pop("q"), store.queue_pop("q"))),
            ("queue_pop empty", lambda: store.queue_pop("q", False)),
            ("queue_len empty", lambda: store.queue_len("q")),
        ]
    if has("list_keys"):
        calls += [("list_keys", lambda: store.list_keys())]
    if has("barrier"):
        calls += [
            ("barrier of one", lambda: store.barrier("b1", 1, LIMIT)),
            ("barrier in vain", lambda: store.barrier("b2", 2, brief)),
            ("barrier after it", lambda: store.barrier("b2", 2, LIMIT)),
        ]
    if has("clone"):
        calls += [("clone", lambda: store.clone().get("n"))]
    return [(name, answer_of(call)) for name, call in calls]


def agrees_with_torch(*options):
    own = TCPStore("127.0.0.1", 0, None, True, LIMIT, wait_for_workers=False)
    with Server(*options) as server:
        ours, theirs = every_method(client(server.port)), every_method(client(own.port))
    for (name, a), (_, b) in zip(ours, theirs):
        assert a == b, "%s: our server %r, torch's own %r" % (name, a, b)
    return "%d answers" % len(ours)


def every_way_to_wake(*options):
    with Server(*options) as server:
        a, b = client(server.port), client(server.port)
        ways = [lambda k: b.set(k, "1"), lambda k: b.add(k, 1), lambda k: b.compare_set(k, "", "1")]
        if hasattr(b, "append"):
            ways += [lambda k: b.append(k, "1"), lambda k: b.multi_set([k], ["1"])]
        for i, way in enumerate(ways):
            key, woken = "k%d" % i, threading.Event()
            waiter = threading.Thread(target=lambda: (a.wait([key], LIMIT), woken.set()))
            waiter.start()
            assert not woken.wait(0.05)
            way(key)
            waiter.join(120)
            assert woken.is_set(), "way %d does not wake" % i


def usable_after_a_timeout(*options):
    with Server(*options) as server:
        a, b = client(server.port), client(server.port)
        for i in range(3):
            assert answer_of(lambda: a.wait(["late%d" % i], datetime.timedelta(milliseconds=50))) == "failed"
            if not LEGACY_113:  # 1.13 cannot cancel a wait: a key set before the next request confuses it
                b.set("late%d" % i, "1")
            assert a.add("n", 1) == i + 1
            b.set("late%d" % i, "1")
            a.set("k", str(i))
            assert a.get("k") == str(i).encode()


def storm(*options):
    """1,000 clients that connect at once, increment a counter, wait for the last one, and stay until all have seen it."""
    count, threads = 1000, 20
    with Server(*options) as server:
        problems = []

        def some():
            try:
                clients = [client(server.port) for _ in range(count // threads)]
                for c in clients:
                    if c.add("count", 1) == count:
                        c.set("all", "x" * 1000)
                for c in clients:
                    c.wait(["all"], LIMIT)
                    assert len(c.get("all")) == 1000
            except Exception:
                problems.append(traceback.format_exc())

        crowd = [threading.Thread(target=some) for _ in range(threads)]
        start = time.monotonic()
        for t in crowd:
            t.start()
        for t in crowd:
            t.join(240)
        assert not problems, problems[0]
        assert client(server.port).add("count", 0) == count
        return "%d clients in %.2f s" % (count, time.monotonic() - start)


def keys_that_come_as_the_wait_ends(*options):
    """WAIT, a time-out after a few milliseconds, CANCEL_WAIT, and the key set at about the same time: in either
    order, requests and answers of the connection must stay in step."""
    if LEGACY_113:
        return "skipped: this PyTorch cannot cancel a wait"
    with Server(*options) as server:
        a, b, met = client(server.port), client(server.port), 0
        for i in range(300):
            setter = threading.Timer(0.002 + 0.00002 * (i % 50), lambda: b.set("race%d" % i, "1"))
            setter.start()
            met += answer_of(lambda: a.wait(["race%d" % i], datetime.timedelta(milliseconds=3))) is None
            setter.join()
            assert a.add("n", 1) == i + 1, "out of step after %d waits" % i
            assert a.get("race%d" % i) == b"1"
        return "%d of 300 waits were met" % met


def queues_feed_waiting_clients(*options):
    if not hasattr(TCPStore, "queue_push"):
        return "skipped: this PyTorch has no queues"
    with Server(*options) as server:
        got, feeder = [], client(server.port)

        def take(store):
            """PyTorch's client waits and then pops; another client may pop first, with any server."""
            for _ in range(25):
                while True:
                    try:
                        got.append(store.queue_pop("jobs"))
                        break
                    except dist.QueueEmptyError:
                        pass

        takers = [threading.Thread(target=take, args=(client(server.port),)) for _ in range(4)]
        for t in takers:
            t.start()
        for i in range(100):
            feeder.queue_push("jobs", str(i))
        for t in takers:
            t.join(240)
        assert sorted(int(v) for v in got) == list(range(100)), got
        assert feeder.queue_len("jobs") == 0


def a_client_is_killed(*options):
    with Server(*options) as server:
        code = ("import torch.distributed as d, datetime; s = d.TCPStore('127.0.0.1', %d, None, False, "
                "datetime.timedelta(seconds=240)); s.set('here', '1'); s.wait(['never'])" % server.port)
        victim = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        a = client(server.port)
        a.wait(["here"], LIMIT)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        a.set("never", "now")
        assert a.get("never") == b"now"


WORKER = """
import faulthandler
faulthandler.dump_traceback_later(300, exit=True)  # prints the stack of a hang
import sys, torch, torch.distributed as dist
sys.path.insert(0, "%s/scripts")
from leave import leave
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
t = torch.ones(1000) * (rank + 1)
dist.all_reduce(t)
assert t.tolist() == [world * (world + 1) / 2] * 1000
group = dist.new_group([0, world - 1])
if rank in (0, world - 1):
    u = torch.tensor([float(rank)])
    dist.all_reduce(u, group=group)
    assert u.item() == world - 1
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank, "filler": "x" * 100000})
assert [o["rank"] for o in objects] == list(range(world))
dist.barrier()
leave()
"""


def process_groups(*options):
    if not dist.is_gloo_available() if hasattr(dist, "is_gloo_available") else False:
        return "skipped: this PyTorch has no gloo"
    world = 4
    with Server(*options) as server:
        workers = []
        for rank in range(world):
            env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(server.port), RANK=str(rank),
                       WORLD_SIZE=str(world), LOCAL_RANK=str(rank), TORCHELASTIC_USE_AGENT_STORE="True",
                       TORCHELASTIC_RESTART_COUNT="0", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
            workers.append(subprocess.Popen([sys.executable, "-c", WORKER % HERE], env=env, stderr=subprocess.PIPE))
        try:
            for worker in workers:
                _, text = worker.communicate(timeout=400)
                assert worker.returncode == 0, text.decode()[-2000:]
        finally:
            for worker in workers:
                worker.kill()
    return "%d workers" % world


def our_clients(backend):
    if VERSION < (2, 5):
        return "skipped: our clients begin with PING, which is of 2.5"
    if backend == "classic":
        own = TCPStore("127.0.0.1", 0, None, True, LIMIT, wait_for_workers=False, use_libuv=False)
    else:
        own = TCPStore("127.0.0.1", 0, None, True, LIMIT, wait_for_workers=False)
    argv = [BUILD + "/tests/torch/store_talk", str(own.port)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 0, done.stdout


def main():
    for program in ("bench/store_serve", "torch/store_talk"):
        if not os.path.exists(BUILD + "/tests/" + program):
            sys.exit("store_peer: %s/tests/%s is not built" % (BUILD, program))
    checks = [(check, options) for check in (agrees_with_torch, every_way_to_wake, usable_after_a_timeout, storm,
                                             keys_that_come_as_the_wait_ends, queues_feed_waiting_clients,
                                             a_client_is_killed, process_groups)
              for options in ((), ("--thread",))]
    checks += [(our_clients, ("libuv",)), (our_clients, ("classic",))]
    wanted = os.environ.get("TEST_FILTER", "")
    checks = [c for c in checks if wanted in c[0].__name__]
    print("torch %s" % torch.__version__)
    failed, done = 0, 0
    for i, (check, options) in enumerate(checks):
        if i and time_is_up(f"{check.__name__} and {len(checks) - i - 1} more"):
            break
        start, done = time.monotonic(), done + 1
        try:
            note = check(*options) or "ok"
        except Exception:
            failed += 1
            note = "FAILED\n" + traceback.format_exc()
        print("%-26s %-10s %5d ms  %s" % (check.__name__, " ".join(options) or "(loop)",
                                         (time.monotonic() - start) * 1000, note), flush=True)
    summary(done, failed)


if __name__ == "__main__":
    main()
