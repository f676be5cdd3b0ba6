"""Every operation of the Python package dlcoll on numpy arrays: dlaunch --nproc_per_node 3 tests/lib/use_arrays.py"""
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "collectives", "python"))
from dlcoll import Comm, Error, Reduction, located  # noqa: E402


def unknown_lengths(world):
    n, me = world.size, world.rank
    right, left = (me + 1) % n, (me - 1) % n
    x, y = np.full(me + 3, me), np.full(50, -1)
    world.barrier()
    assert world.probe(wait=False) is None and world.mprobe(left, wait=False) is None
    world.barrier()
    sent = world.send(x, right, tag=4, wait=False, synchronous=True)
    found = world.probe()
    assert (found.source, found.tag, found.count, found.bytes) == (left, 4, left + 3, 8 * (left + 3)), found
    got = world.recv_upto(y, left)
    assert got.count == left + 3 and y[got.count - 1] == left and y[got.count] == -1, got
    sent.wait()
    sent = world.send(x, right, wait=False)
    message = world.mprobe(left)
    assert world.probe(wait=False) is None
    work = world.mrecv(y, message, wait=False)
    assert work.wait() and work.message.count == left + 3
    sent.wait()
    world.barrier()
    work = world.recv_upto(y, wait=False)
    assert work.cancel() and not work.cancel()
    try:
        work.wait()
        raise AssertionError("it was cancelled")
    except Error as e:
        assert e.code == -12, e
    world.barrier()


def failing_reductions(world):
    """An exception of a reduction is every rank's Error, and on its own rank the cause of it."""
    def add(acc, x):
        if world.rank == 1:
            raise ValueError("too\nlarge")
        acc += x

    for wait in True, False:
        group = world.dup()
        try:
            work = group.all_reduce(np.full(5, world.rank), Reduction(add, int), wait=wait)
            if not wait:
                work.wait()
            raised = None
        except Error as e:
            raised = e
        assert len(set(world.exchange(raised and str(raised)))) == 1, raised
        assert not raised or (raised.code == -7 and raised.rank == 1 and "ValueError: too" in str(raised)), raised
        assert not raised or (world.rank == 1) == isinstance(raised.__cause__, ValueError), raised
        group.close(finalize=False)


def dropped_works(world):
    """A work that is dropped ends: one that waits for a message that never comes, too."""
    x = np.full(1 << 18, 1)
    world.all_reduce(x, wait=False)
    assert (x == world.size).all()
    world.recv(x, (world.rank + 1) % world.size, tag=99, wait=False)


def side_by_side(world):
    """Threads that send and receive while another one is in an operation."""
    def exchange(tag):
        for k in range(20):
            x = np.full(100, world.rank + k)
            work = world.send(x, (world.rank + 1) % world.size, tag=tag, wait=False)
            y = world.recv(np.empty_like(x), (world.rank - 1) % world.size, tag=tag)
            work.wait()
            assert (y == (world.rank - 1) % world.size + k).all()

    with ThreadPoolExecutor() as threads:
        done = [threads.submit(exchange, tag) for tag in range(3)]
        for _ in range(20):
            assert world.all_reduce(np.ones(5))[0] == world.size
        for one in done:
            one.result()


def main():
    with Comm(thread_multiple=True) as world:
        n, me = world.size, world.rank
        side_by_side(world)
        failing_reductions(world)
        dropped_works(world)
        for name in ("float32", "float64", "int32", "uint8", "float16"):
            x = np.arange(1000).astype(name) % 3 + me % 2
            want = sum((np.arange(1000).astype(name) % 3 + r % 2) for r in range(n)).astype(name)
            assert (world.all_reduce(x, out=np.empty_like(x)) == want).all(), name
        odd = world.all_reduce(np.array([me, 0, 2], np.int32), "lxor")
        assert (odd == [(n - 1) % 2, 0, n % 2]).all(), odd
        worst = np.array([(me % 2 * 2.5, me)], located("float64"))
        best = world.all_reduce(worst, "maxloc", out=np.empty_like(worst))[0]
        assert (best["value"], best["index"]) == ((2.5, 1) if n > 1 else (0, 0)), best
        grid = np.full((4, 5), me)
        world.all_reduce(grid[:, 1:3], out=grid[:, 3:])
        assert (grid[:, 3:] == n * (n - 1) // 2).all() and (grid[:, :3] == me).all()
        assert (world.all_gather(grid[::2, 0]) == np.arange(n)[:, None]).all()
        ring = [(me - 1) % n], [(me + 1) % n]
        before = (me - 1) % n
        assert (world.neighbor_all_gather(np.array([me, -me]), np.empty(2, int), *ring) == [before, -before]).all()
        assert world.neighbor_all_to_all(np.array([me]), np.empty(1, int), *ring)[0] == before
        got = world.neighbor_all_to_all(np.array([me]), np.empty(1, int), *ring, counts=[1], out_counts=[1])
        assert got[0] == before
        assert world.neighbor_all_gather(np.array([me]), np.empty(1, int), *ring, out_counts=[1], wait=False).wait()
        x = np.repeat(np.arange(n), 2)
        assert (world.all_to_all_v(x, [2] * n, x, [2] * n) == me).all()
        blocks = [np.full(3, me, np.float32 if i % 2 else np.int64) for i in range(n)]
        got = [np.empty(3, np.float32 if me % 2 else np.int64) for _ in range(n)]
        world.all_to_all_w(blocks, got)
        assert all((got[i] == i).all() for i in range(n))

        x = np.ones(3)
        again = world.persistent().all_reduce(x)
        for _ in range(3):
            again.start()
            assert again.wait()
        assert (x == n ** 3).all()

        def multiply(acc, x):
            acc *= x

        for name in "complex64", "complex128":
            x = np.arange(12).reshape(3, 4).astype(name) + me * 1j
            want = n * np.arange(12).reshape(3, 4) + n * (n - 1) // 2 * 1j
            assert (world.all_reduce(x.copy()) == want).all()
            last = world.scan(x.copy())
            assert me < n - 1 or (last == want).all()
            assert np.allclose(world.all_reduce(x, "avg", out=np.empty_like(x)), want / n)
            world.all_reduce(x[:, 1:2], out=x[:, 3:])
            assert (x[:, 3] == want[:, 1]).all() and (x[:, 2] == [2 + me * 1j, 6 + me * 1j, 10 + me * 1j]).all()
            assert (world.all_reduce(np.full(7, 1j, name), "prod") == 1j ** n).all()
            assert (world.reduce_scatter(np.full(2 * n, 1 + 2j, name), np.empty(2, name)) == n * (1 + 2j)).all()
            try:
                world.all_reduce(np.ones(3, name), "max")
                assert False, "complex numbers have no order"
            except Error as e:
                assert e.code == -4 and f"max is not defined for {name}" in str(e), e
        turn = world.all_reduce(np.full(700, 1j), Reduction(multiply, complex))
        assert (turn == 1j ** n).all(), turn
        assert (world.broadcast(np.array([me + 1j])) == 1j).all()
        assert (world.scan(np.full(9, me + 1)) == (me + 1) * (me + 2) // 2).all()
        assert (world.exscan(np.full(9, me + 1), out=np.full(9, -1)) == (me * (me + 1) // 2 or -1)).all()
        x = np.full((2, 3), me, np.int64)
        assert (world.broadcast(x, root=n - 1) == n - 1).all()
        assert (world.all_gather(np.array([me])).ravel() == np.arange(n)).all()
        part = world.reduce_scatter(np.arange(2.0 * n), np.empty(2))
        assert (part == n * np.array([2 * me, 2 * me + 1])).all()
        swapped = world.all_to_all(np.full(n, me), np.empty(n, int))
        assert (swapped == np.arange(n)).all()
        there = world.gather(np.array([me, -me]), root=n - 1)
        assert there is None if me < n - 1 else (there == [[r, -r] for r in range(n)]).all()
        mine = world.scatter(np.arange(2.0 * n) if me == 0 else None, np.empty(2))
        assert (mine == [2 * me, 2 * me + 1]).all()
        peak = world.reduce(np.array([float(me)]), op="max")
        assert me or peak[0] == n - 1
        if n > 1:
            there = world.send(np.array([me]), (me + 1) % n, wait=False)
            assert world.recv(np.empty(1, int), (me - 1) % n)[0] == (me - 1) % n
            there.wait()
            unknown_lengths(world)
            assert there.wait()
        x = np.ones(100, np.float32)
        work = world.all_reduce(x, "avg", wait=False)
        assert work.wait() and (x == 1).all()
        assert world.exchange({"rank": me}) == [{"rank": r} for r in range(n)]
        shared = world.empty(1 << 16)
        shared[:] = 1
        assert (world.all_reduce(shared) == n).all()
        try:
            world.all_reduce(np.ones(3).astype(np.dtype(float).newbyteorder("S")))
            assert False, "summed in the other byte order"
        except TypeError:
            pass
        half, words, twin = world.split(me % 2, wait=False), world.exchange(me, wait=False), world.dup(wait=False)
        assert words.result() == list(range(n)) and words.result()[0] == 0
        with half.result() as ranks, twin.result() as same:
            assert ranks.size == (n + 1 - me % 2) // 2 and same.rank == me
        with world.dup() as same, world.group(range(n), wait=False).result() as listed:
            assert same.size == listed.size == n
        assert world.nodes == world.domains("node") == world.domains("host") == [list(range(n))]
        with world.split_by("host") as host:
            assert host.size == n and host.rank == me
        half = world.split(me % 2)
        assert half.all_reduce(np.array([1]))[0] == half.size == (n + 1 - me % 2) // 2
        try:
            half.recv(np.empty(1), half.rank, timeout=0.0001)
            assert False, "nobody has sent it"
        except Error as e:
            assert "timed out" in str(e), e
        half.close(finalize=False)
        ends = world.group([n - 1, 0] if n > 1 else [0], "ends")
        if ends:
            assert ends.broadcast(np.array([me]), root=0)[0] == n - 1
            ends.close()
        world.barrier()
        print(f"rank {me} of {n}: everything is as it should be", flush=True)


if __name__ == "__main__":
    main()
