"""The backend dlcoll where it is hard on it: threads, futures and their callbacks, failures, destruction at any moment.

    dlaunch --nproc_per_node 2 tests/torch/backend_hard.py [CASE ...]

Each case has groups of its own, so that what it breaks is its own. What must not happen sooner is held up by a message
from the other rank, never by time.
"""
import gc
import os
import random
import sys
import tempfile
import threading
import time
import warnings
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "collectives", "python"))
import dlcoll.torch  # noqa: E402,F401
import rank_cases  # noqa: E402

warnings.simplefilter("ignore", FutureWarning)
SIGNAL = torch.zeros(1)


def until(fact, what, seconds=30):
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def other():
    return 1 - RANK


def tell():
    """Lets the other rank's hear() return: on a group that no case uses otherwise."""
    dist.isend(SIGNAL, other(), group=TALK)


def hear():
    dist.recv(torch.zeros(1), other(), group=TALK)


def thread(fn):
    """Starts it; join() raises what it has raised."""
    trouble = []

    def run():
        try:
            fn()
        except BaseException as e:  # noqa: BLE001
            trouble.append(e)

    t = threading.Thread(target=run)
    t.start()

    def join():
        t.join(60)
        assert not t.is_alive(), "the thread hangs"
        if trouble:
            raise trouble[0]

    return join


def raises(call, *words):
    try:
        call()
    except Exception as e:  # noqa: BLE001
        assert all(w in str(e) for w in words), str(e)
        return e
    raise AssertionError("no exception")


def sums(x):
    """All elements are the sum over two ranks of ones."""
    assert (x == 2).all(), x


# --------------------------------------------------------------------------------------- results that are copied back

def under_way(make, finish):
    """An operation on make(), which is complete only after rank 0 has called finish(work)'s first half."""
    g = dist.new_group()
    t = make()
    if RANK == 1:
        hear()
    work = dist.all_reduce(t, group=g, async_op=True)
    if RANK == 0:
        tell()
    finish(work)
    return t


WAYS = {"wait": lambda w: w.wait(), "future": lambda w: w.get_future().wait(),
        "poll": lambda w: until(w.is_completed, "it does not complete"),
        "callback": lambda w: w.get_future().then(lambda f: f.value()).wait()}
LAYOUTS = {"transposed": lambda: torch.ones(4, 4).t()[1:3], "column": lambda: torch.ones(6, 4)[:, 1],
           "expanded": lambda: torch.ones(1).expand(4), "rows expanded": lambda: torch.ones(3, 1).expand(3, 5),
           "leaf": lambda: torch.ones(3, 3, requires_grad=True).t(),
           "inference": lambda: torch.inference_mode()(lambda: torch.ones(4, 4).t()[1:3])()}


def case_copies_of_every_layout():
    for make in LAYOUTS.values():
        for way in WAYS.values():
            sums(under_way(make, way))
            with torch.inference_mode():
                sums(under_way(make, way))


def case_views_with_a_flag():
    backend = dist.new_group()._get_backend(torch.device("cpu"))  # PyTorch refuses to move a conjugate view
    whole = torch.tensor([1 + 2j, 3 + 4j])
    for end in (lambda w: w.wait(), lambda w: w.get_future().wait()):
        x = whole.clone().conj()
        end(backend.allreduce([x]))
        assert x.is_conj() and torch.equal(x.resolve_conj(), 2 * whole.conj().resolve_conj()), x
        x = whole.clone().conj().imag
        end(backend.allreduce([x]))
        assert x.tolist() == [-4, -8], x


def case_overlapping_buffers():
    z = torch.arange(4.0)
    dist.all_gather_into_tensor(z, z[:2])
    assert z.tolist() == [0, 1, 0, 1], z
    y = torch.zeros(4)
    dist.all_gather([y[:2], y[1:3]], torch.full((2,), RANK + 1.0))
    assert y.tolist() == [1, 2, 2, 0], y
    z = torch.arange(4.0)
    dist.reduce_scatter_tensor(z[1:3], z)
    assert z.tolist() == [0, *[2.0 * i for i in (2 * RANK, 2 * RANK + 1)], 3], z
    z = torch.arange(5.0)
    dist.all_to_all_single(z[:4], z[1:])
    assert z.tolist() == [1 + 2 * RANK, 2 + 2 * RANK, 1 + 2 * RANK, 2 + 2 * RANK, 4], z


# ------------------------------------------------------------------------------------------------------------ failures

def broken_group():
    """A group on which rank 0's operations time out."""
    return dist.new_group(timeout=timedelta(milliseconds=300))


def case_a_failed_operation_fails_everywhere():
    g = broken_group()
    if RANK == 0:
        work = dist.all_reduce(torch.ones(2), group=g, async_op=True)
        future = work.get_future()
        after = future.then(lambda f: f.value())
        done = []
        future.add_done_callback(lambda f: done.append(raises(f.value)))
        assert isinstance(raises(future.wait, "timeout in", "rank 1"), dist.DistBackendError)
        raises(after.wait, "timeout in", "rank 1")
        raises(work.wait, "timeout in", "rank 1")
        assert work.is_completed() and not work.is_success() and "rank 1" in str(work.exception())
        until(lambda: done, "the callback has not run")
        # what comes later still has the cause
        for call in (lambda: dist.all_reduce(torch.ones(2), group=g), lambda: dist.barrier(group=g),
                     lambda: dist.all_reduce(torch.ones(2), group=g, async_op=True).wait(),
                     lambda: dist.send(torch.ones(2), 1, group=g), lambda: dist.recv(torch.ones(2), 1, group=g)):
            assert isinstance(raises(call, "failed before", "timeout in", "rank 1"), dist.DistBackendError)
        tell()
    else:
        hear()
    dist.destroy_process_group(g)


def case_callbacks_that_raise():
    g = dist.new_group()
    for _ in range(3):
        future = dist.all_reduce(torch.ones(2), group=g, async_op=True).get_future()
        bad = future.then(lambda f: 1 / 0)
        future.add_done_callback(lambda f: [][1])
        good = future.then(lambda f: f.value()[0])
        raises(bad.wait, "division")
        sums(good.wait())
    dist.destroy_process_group(g)


def case_ddp_of_a_late_peer():
    g = broken_group()
    if RANK == 0:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=g, init_sync=False)
        raises(lambda: model(torch.ones(1, 4)).sum().backward(), "rank 1")
        tell()
    else:
        hear()


# ------------------------------------------------------------------------------------------------------------- threads

def while_blocked(block, act):
    """Rank 0 has a thread in block(g), which ends when rank 1 enters it, after both have done act(g)."""
    g = dist.new_group()
    if RANK == 0:
        started = threading.Event()

        def enter():
            started.set()
            block(g)

        join = thread(enter)
        started.wait()
        for _ in range(20):  # the thread may not be in yet: some of them find it there
            act(g)
            time.sleep(0)
        join()
    else:
        for _ in range(20):
            act(g)
        block(g)


BLOCKS = {"barrier": lambda g: dist.barrier(group=g), "all_reduce": lambda g: dist.all_reduce(torch.ones(9), group=g),
          "monitored": lambda g: dist.monitored_barrier(g, timeout=timedelta(seconds=60)),
          "recv": lambda g: dist.send(torch.ones(1), 0, group=g, tag=9) if RANK else
          dist.recv(torch.ones(1), 1, group=g, tag=9)}


def messages(g):
    x = torch.zeros(1)
    if RANK == 0:
        dist.send(torch.ones(1), 1, group=g)
        dist.recv(x, 1, group=g)
    else:
        dist.recv(x, 0, group=g)
        dist.send(torch.ones(1), 0, group=g)


def groups(_):
    g = dist.new_group([0, 1], use_local_synchronization=True)
    x = torch.ones(2)
    dist.all_reduce(x, group=g)
    sums(x)
    dist.destroy_process_group(g)


def case_messages_beside_what_blocks():
    for block in BLOCKS.values():
        while_blocked(block, messages)


def case_groups_beside_what_blocks():
    for block in BLOCKS.values():
        while_blocked(block, groups)


def case_groups_beside_the_worlds_operations():
    if RANK == 0:
        x = torch.ones(4)
        join = thread(lambda: dist.all_reduce(x))
        groups(None)
        join()
    else:
        groups(None)
        x = torch.ones(4)
        dist.all_reduce(x)
    sums(x)


def case_operations_begin_beside_what_blocks():
    """Rank 1 enters the barrier only when rank 0 has begun an all_reduce behind it, in another thread."""
    g = dist.new_group()
    x = torch.ones(3)
    if RANK == 0:
        join = thread(dist.barrier(group=g, async_op=True).wait)  # begun before the other thread is
        hear()
        join_2 = thread(lambda: (dist.all_reduce(x, group=g, async_op=True).wait()))
        tell()
        join(), join_2()
    else:
        tell()
        hear()
        dist.barrier(group=g)
        dist.all_reduce(x, group=g)
    sums(x)


def case_one_work_awaited_by_many():
    g = dist.new_group()
    if RANK == 1:
        hear()
    x = torch.ones(100)
    work = dist.all_reduce(x, group=g, async_op=True)
    joins = [thread(work.wait) for _ in range(4)] + [thread(lambda: work.get_future().wait()) for _ in range(4)]
    joins += [thread(lambda: until(work.is_completed, "it does not complete"))]
    if RANK == 0:
        raises(lambda: work.wait(timedelta(milliseconds=20)), "within 20 ms")
        tell()
    for join in joins:
        join()
    sums(x)


# ------------------------------------------------------------------------------------------------------------- memory

def expect_freed(make):
    """make() returns a weak reference, to what must go with the rest that make() has made."""
    ref = make()
    gc.collect()
    until(lambda: ref() is None, "the tensor is still there")


def case_tensors_go_with_their_operation():
    g = dist.new_group()

    def reduced(end):
        x = torch.ones(1000)
        end(dist.all_reduce(x, group=g, async_op=True))
        return weakref.ref(x)

    def sent(end):
        x, y = torch.ones(1000), torch.ones(1000)
        works = dist.irecv(y, other(), group=g), dist.isend(x, other(), group=g)
        for work in works:
            end(work)
        return weakref.ref(y if RANK else x)

    open_one = dist.irecv(torch.zeros(1), other(), group=g, tag=77)  # nothing of the rest stands behind it
    for way in (*WAYS.values(), lambda w: None):
        expect_freed(lambda: reduced(way))
    for way in (WAYS["wait"], WAYS["poll"], lambda w: None):
        expect_freed(lambda: sent(way))
    dist.isend(torch.ones(1), other(), group=g, tag=77)
    open_one.wait()


# ----------------------------------------------------------------------------------------------------------- callbacks

def case_callbacks_that_wait():
    """Each callback waits for the next operation, by its work or by its future, in turn."""
    g = dist.new_group()
    seen = []

    def next_one(depth):
        x = torch.ones(2)
        work = dist.all_reduce(x, group=g, async_op=True)
        if depth < 8:
            return work.get_future().then(lambda f: next_one(depth + 1))
        return work.get_future()

    def wait_in_turn(depth):
        x = torch.ones(2)
        work = dist.all_reduce(x, group=g, async_op=True)
        if depth == 8:
            return seen.append(depth)
        future = work.get_future().then(lambda f: wait_in_turn(depth + 1))
        work.wait() if depth % 2 else None
        future.wait()
        seen.append(depth)

    next_one(0).wait()
    wait_in_turn(0)
    assert sorted(seen) == list(range(9)), seen
    x = torch.ones(2)
    dist.all_reduce(x, group=g, async_op=True).get_future().then(lambda f: dist.barrier(group=g)).wait()
    sums(x)


def case_a_callback_that_waits_for_another_thread():
    g = dist.new_group()
    free, begun, after = threading.Event(), threading.Event(), []
    # The message comes when the callback is there: after that, then() would call it in this thread.
    held = dist.irecv(torch.zeros(1), other(), group=g, tag=6).get_future().then(lambda f: (begun.set(), free.wait(60))[1])
    tell()
    hear()
    dist.isend(SIGNAL, other(), group=g, tag=6)
    assert begun.wait(30)
    for _ in range(20):  # the others go on meanwhile
        after.append(dist.all_reduce(torch.ones(2), group=g, async_op=True).get_future().then(lambda f: f.value()[0]))
    for future in after:
        sums(future.wait())
    assert not held.done()
    free.set()
    assert held.wait() is True


def case_callbacks_have_run_when_wait_returns():
    g = dist.new_group()
    for _ in range(30):
        seen = []
        work = dist.all_reduce(torch.ones(2), group=g, async_op=True)
        work.get_future().then(lambda f: seen.append(work.is_success() and work.wait()))
        work.wait()
        assert seen == [True], seen


def case_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as sgd

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    model.register_comm_hook(sgd.PowerSGDState(None, 1, start_powerSGD_iter=2), sgd.powerSGD_hook)
    for _ in range(4):
        model(torch.ones(2, 64)).sum().backward()


# ---------------------------------------------------------------------------------------------------------- destruction

def case_destroyed_in_a_callback():
    for _ in range(5):
        g = dist.new_group()
        x = torch.ones(2)
        dist.all_reduce(x, group=g, async_op=True).get_future().then(lambda f: dist.destroy_process_group(g)).wait()
        sums(x)


def case_destroyed_with_operations_under_way():
    for way in (WAYS["wait"], WAYS["future"], lambda w: None):
        g = dist.new_group()
        open_one = dist.irecv(torch.zeros(1), other(), group=g, tag=5)  # nobody sends it
        if RANK == 1:
            hear()
        x = torch.ones(1000)
        work = dist.all_reduce(x, group=g, async_op=True)
        if RANK == 0:
            tell()
        dist.destroy_process_group(g)
        del g
        way(work)
        until(work.is_completed, "it does not complete")
        sums(x)
        raises(open_one.wait)  # it ends with the group


def case_destruction_does_not_wait():
    """Rank 1 destroys its groups only when rank 0 has destroyed its own."""
    some = [dist.new_group() for _ in range(8)]
    for g in some:
        dist.barrier(group=g)
    if RANK == 1:
        hear()
    start = time.monotonic()
    for g in some:
        dist.destroy_process_group(g)
    took = time.monotonic() - start
    if RANK == 0:
        tell()
    assert took < 1, f"{took:.1f} s"


def case_destroyed_beside_other_threads():
    """Every call ends: with a result, or with the word that the group has gone or that the other rank has left.

    The calls are those of the backend: PyTorch's own group must not be destroyed beside its calls."""
    for turn in range(10):
        g = dist.new_group(timeout=timedelta(seconds=20))
        backend, stop = g._get_backend(torch.device("cpu")), threading.Event()

        def use():
            while not stop.is_set():
                try:
                    backend.allreduce([torch.ones(50)]).get_future().then(lambda f: f.value())
                    backend.send([torch.ones(5)], other(), 0)
                    backend.recv([torch.ones(5)], other(), 0)
                except RuntimeError:
                    return

        joins = [thread(use) for _ in range(2)]
        if turn % 3 == 0 and RANK == 0:
            backend.abort()
        backend.shutdown()
        stop.set()
        for join in joins:
            join()


def case_groups_that_are_dropped():
    for _ in range(5):
        g = dist.new_group()
        work = dist.all_reduce(torch.ones(2), group=g, async_op=True)
        work.get_future().then(lambda f: f.value())
        dist.destroy_process_group(g)
        del g, work
    gc.collect()


def case_a_forked_child():
    g = dist.new_group()
    work = dist.all_reduce(torch.ones(2), group=g, async_op=True)
    work.get_future().wait()
    open_one = dist.irecv(torch.zeros(1), other(), group=g, tag=4)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            raises(lambda: dist.all_reduce(torch.ones(2), group=g), "fork")
            raises(open_one.wait, "fork")
            del open_one, work
            gc.collect()
            dist.destroy_process_group()
            status = 7
        finally:
            os._exit(status)
    status = []

    def has_ended():
        child, how = os.waitpid(pid, os.WNOHANG)
        status.append(os.waitstatus_to_exitcode(how))
        return child

    until(has_ended, "it hangs")
    assert status[-1] == 7, status[-1]
    dist.isend(SIGNAL, other(), group=g, tag=4)
    open_one.wait()
    dist.destroy_process_group(g)


# --------------------------------------------------------------------------------------------------------------- sparse

def sparse():
    """One element in common, one of each rank."""
    return torch.sparse_coo_tensor([[1, 3 + RANK]], torch.ones(2), (5,), check_invariants=True)


def sparse_sums(x):
    assert x.to_dense().tolist() == [0, 2, 0, 1, 1], x


def case_sparse_in_every_way():
    for way in WAYS.values():
        sparse_sums(under_way(sparse, way))
        with torch.inference_mode():
            sparse_sums(under_way(sparse, way))


def case_sparse_callbacks_that_wait():
    g = dist.new_group()
    seen = []

    def wait_in_turn(depth):
        x = sparse()
        work = dist.all_reduce(x, group=g, async_op=True)
        if depth < 6:
            future = work.get_future().then(lambda f: (work.wait(), wait_in_turn(depth + 1)))
            work.wait() if depth % 2 else None
            future.wait()
        work.wait()
        sparse_sums(x)
        seen.append(depth)

    wait_in_turn(0)
    assert sorted(seen) == list(range(7)), seen


def case_sparse_failures():
    shapes = ((4, 4), (5, 5)), ((4, 4), (4, 5))
    for of_rank in shapes:  # told to every rank; the group goes on
        g = dist.new_group()
        x = torch.ones(of_rank[RANK]).to_sparse()
        raises(lambda: dist.all_reduce(x, group=g), "do not match")
        y = sparse()
        dist.all_reduce(y, group=g)
        sparse_sums(y)
    g = broken_group()
    if RANK == 0:
        work = dist.all_reduce(sparse(), group=g, async_op=True)
        raises(work.get_future().wait, "timeout")
        raises(work.wait, "timeout")
        raises(lambda: dist.all_reduce(sparse(), group=g), "timeout")
        raises(lambda: dist.all_reduce(torch.ones(2), group=g), "failed before")
    g = dist.new_group()
    work = dist.all_reduce(sparse(), group=g, async_op=True) if RANK == 0 else None
    if RANK == 0:
        g._get_backend(torch.device("cpu")).abort()
        raises(work.wait, "aborted")


def case_sparse_destroyed_under_way():
    for way in (WAYS["wait"], WAYS["future"], lambda w: None):
        g = dist.new_group()
        if RANK == 1:
            hear()
        x = sparse()
        work = dist.all_reduce(x, group=g, async_op=True)
        if RANK == 0:
            tell()
        dist.destroy_process_group(g)
        del g
        way(work)
        until(work.is_completed, "it does not complete")
        work.wait()
        sparse_sums(x)


# --------------------------------------------------------------------------------------------------------------- stores

def case_stores_of_every_kind():
    """A group of a gloo default group meets through the given store, wherever MASTER_ADDR is."""
    box = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(box, 0)
    dist.destroy_process_group()
    given = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    os.environ["MASTER_ADDR"] = "192.0.2.1"  # nobody is there
    for turn in range(3):
        store = dist.FileStore(f"{box[0]}/file{turn // 2}", 2)
        store = dist.PrefixStore("a", dist.PrefixStore(str(turn), store))
        dist.init_process_group("dlcoll", store=store, rank=RANK, world_size=2, timeout=timedelta(seconds=30))
        x = torch.ones(2)
        dist.all_reduce(x)
        sums(x)
        dist.destroy_process_group()
    start = time.monotonic()
    if RANK == 0:
        store = dist.FileStore(f"{box[0]}/alone", 2)
        raises(lambda: dist.init_process_group("dlcoll", store=store, rank=0, world_size=2,
                                               timeout=timedelta(seconds=1)), "rank 1")
        assert time.monotonic() - start < 20
    os.environ.update(given)
    begin()


def case_the_default_group_anew():
    """With works of the old one that nobody has awaited."""
    for _ in range(3):
        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        works.append(dist.irecv(torch.ones(1), other(), tag=3))
        dist.destroy_process_group()
        begin()
        x = torch.ones(2)
        dist.all_reduce(x)
        sums(x)
        del works


# --------------------------------------------------------------------------------------------------------------- random

def case_anything_at_once():
    """Threads with a group each, whose operations are awaited, polled, dropped or chained as chance has it."""
    def play(g, seed):
        chance, held = random.Random(seed), []
        for _ in range(150):
            n, way = chance.choice((1, 10, 3000)), chance.randrange(6)
            x = torch.ones(n, 2)[:, 0] if chance.random() < 0.3 else torch.ones(n)
            work = dist.all_reduce(x, group=g, async_op=way > 0)
            if way == 0:
                sums(x)
            elif way == 1:
                work.wait()
                sums(x)
            elif way == 2:
                held.append((x, work.get_future().then(lambda f: f.value())))
            elif way == 3:
                held.append((x, work))
            elif way == 4:
                work.get_future()
            if len(held) > 10:
                x, what = held.pop(chance.randrange(len(held)))
                what.wait()
                sums(x)
        for x, what in held:
            what.wait()
            sums(x)

    some = [dist.new_group() for _ in range(4)]
    joins = [thread(lambda g=g, i=i: play(g, 1000 * SEED + i)) for i, g in enumerate(some)]
    for join in joins:
        join()
    for g in some:
        dist.destroy_process_group(g)


def begin():
    global TALK
    dist.init_process_group("dlcoll", timeout=timedelta(seconds=60))
    TALK = dist.new_group()


SEED = int(os.environ.get("SEED", "1"))
torch.set_num_threads(1)
begin()
RANK = dist.get_rank()
rank_cases.run(rank_cases.chosen(globals(), sys.argv[1:]))
