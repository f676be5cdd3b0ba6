"""Every operation of torch.distributed on one backend, compared with results computed on each rank alone.

    dlaunch --nproc_per_node N tests/torch/backend.py BACKEND [CASE ...]

Rank 0 prints a line for each case: "ok CASE" or "FAILED CASE: reason", and the exit status is 0 if all are ok.
"""
import os
import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "collectives", "python"))
import dlcoll.torch  # noqa: E402,F401
import rank_cases  # noqa: E402

warnings.simplefilter("ignore", FutureWarning)
BACKEND = sys.argv[1]
OWN = "dlcoll" in BACKEND  # what gloo does not have is not asked of gloo
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int32, torch.int64]
MORE = [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def value(rank, shape, dtype, seed=0):
    """What `rank` gives: the same on every rank that asks."""
    g = torch.Generator().manual_seed(1000 * seed + rank)
    x = torch.randint(0, 5, shape, generator=g)
    if dtype.is_complex:
        return torch.complex(x.double(), torch.randint(0, 5, shape, generator=g).double()).to(dtype)
    return x.to(dtype)


def same(got, want, exact=True):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    if exact and not got.is_floating_point() or got.dtype in MORE:
        assert torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (got, want))), (got, want)
    else:
        torch.testing.assert_close(got, want)


def everyone(shape, dtype, seed=0):
    return [value(r, shape, dtype, seed) for r in range(SIZE)]


def reduced(op, parts):
    x = torch.stack([p.to(torch.float64) if p.is_floating_point() else p for p in parts])
    dtype = parts[0].dtype
    if op == ReduceOp.SUM:
        return x.sum(0).to(dtype)
    if op == ReduceOp.AVG:
        return (x.sum(0) / len(parts)).to(dtype)
    if op == ReduceOp.PRODUCT:
        return x.prod(0).to(dtype)
    if op == ReduceOp.MIN:
        return x.min(0).values.to(dtype)
    if op == ReduceOp.MAX:
        return x.max(0).values.to(dtype)
    out = parts[0].clone()
    for p in parts[1:]:
        out = out & p if op == ReduceOp.BAND else out | p if op == ReduceOp.BOR else out ^ p
    return out


def case_all_reduce():
    for dtype in FLOATS + INTS:
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
            for shape in ((), (1,), (7, 3), (5000,)):
                x = value(RANK, shape, dtype)
                dist.all_reduce(x, op)
                same(x, reduced(op, everyone(shape, dtype)))
    for dtype in INTS:
        for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            x = value(RANK, (100,), dtype)
            dist.all_reduce(x, op)
            same(x, reduced(op, everyone((100,), dtype)))
    for dtype in (torch.complex64, torch.complex128):
        x = value(RANK, (10,), dtype)
        dist.all_reduce(x)
        same(x, sum(everyone((10,), dtype)))
    if OWN:
        for dtype in (torch.float32, torch.float64):
            x = value(RANK, (9,), dtype)
            dist.all_reduce(x, ReduceOp.AVG)
            same(x, reduced(ReduceOp.AVG, everyone((9,), dtype)))
        x = torch.tensor([RANK == 0, False])
        dist.all_reduce(x)
        assert x.tolist() == [True, False]
        x = value(RANK, (9,), torch.float32)
        dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
        same(x, 2 * reduced(ReduceOp.SUM, everyone((9,), torch.float32)))


def sparse_parts(shape, sparse_dims, dtype, elements, seed=0):
    """What each rank gives: rank r has elements(r) of them, which may have the same place."""
    parts = []
    for r in range(SIZE):
        g = torch.Generator().manual_seed(1000 * seed + r)
        n = elements(r)
        places = torch.stack([torch.randint(0, size, (n,), generator=g) for size in shape[:sparse_dims]])
        parts.append(torch.sparse_coo_tensor(places, value(r, (n, *shape[sparse_dims:]), dtype, seed), shape))
    return parts


def case_sparse():
    many, none = lambda r: 3 * r + 2, lambda r: 0  # noqa: E731
    for shape, sparse_dims in (((7,), 1), ((3, 5), 2), ((4, 2, 3), 1), ((5, 4, 2, 3), 2), ((3, 0), 1)):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
            for elements in (many, none, lambda r: r % 2 * 4, lambda r: 6 if r == SIZE - 1 else 0):
                parts = sparse_parts(shape, sparse_dims, dtype, elements, len(shape))
                x = parts[RANK].clone()
                dist.all_reduce(x)
                assert x.is_sparse and x.is_coalesced() and x.sparse_dim() == sparse_dims, x
                same(x.to_dense(), sum(p.to_dense() for p in parts))
    # Operations that the program does not wait for, with others between them.
    lists = [sparse_parts((9, 2), 1, torch.float32, many, seed) for seed in range(6)]
    given = [parts[RANK].clone() for parts in lists]
    dense = torch.ones(6)
    works = []
    for i, x in enumerate(given):
        works += [dist.all_reduce(x, async_op=True), dist.all_reduce(dense[i:i + 1], async_op=True)]
    for work in reversed(works):
        work.wait()
    for x, parts in zip(given, lists):
        same(x.to_dense(), sum(p.to_dense() for p in parts))
    assert (dense == SIZE).all()
    x = sparse_parts((5,), 1, torch.float32, many)[RANK]
    try:
        dist.all_reduce(x, op=ReduceOp.MAX)
        raise AssertionError("accepted")
    except (RuntimeError, ValueError) as e:
        assert "SUM" in str(e), e
    # The gradients of an embedding.
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.EmbeddingBag(20, 3, sparse=True, mode="sum"))
    model(torch.tensor([[RANK, RANK + 1, 19]])).sum().backward()
    want = torch.zeros(20, 3)
    for r in range(SIZE):
        for row in (r, r + 1, 19):
            want[row] += 1 / SIZE
    same(model.module.weight.grad.to_dense(), want, exact=False)


def case_lists():
    """Several tensors of each rank in one operation, as the backend itself takes them, and gloo's."""
    if not OWN:
        return
    backend = dist.new_group()._get_backend(torch.device("cpu"))
    places = {"plain": lambda x: x, "column": lambda x: torch.stack([x, x], -1)[..., 0]}
    for place in places.values():
        all_of = [[place(value(r, (2, 3), torch.int64, seed)) for seed in range(3)] for r in range(SIZE)]
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            opts, mine = dist.AllreduceOptions(), [x.clone() for x in all_of[RANK]]
            opts.reduceOp = op
            backend.allreduce(mine, opts).wait()
            for x in mine:
                same(x, reduced(op, [x for parts in all_of for x in parts]))
        for root in range(SIZE):
            opts, mine = dist.BroadcastOptions(), [x.clone() for x in all_of[RANK]]
            opts.rootRank, opts.rootTensor = root, 1
            backend.broadcast(mine, opts).wait()
            for x in mine:
                same(x, all_of[root][1])
        outs = [[place(torch.zeros(2, 3, dtype=torch.int64)) for _ in range(3 * SIZE)] for _ in range(3)]
        got = backend.allgather(outs, all_of[RANK]).get_future().wait()
        for lists in (outs, got):
            for one in lists:
                for i, x in enumerate(one):
                    same(x, all_of[i // 3][i % 3])
    for call, word in ((lambda: backend.allreduce([]), "non-empty tensor list"),
                       (lambda: backend.allreduce([torch.zeros(2), torch.zeros(3)]), "invalid tensor size"),
                       (lambda: backend.allreduce([torch.zeros(2), torch.zeros(2).int()]), "invalid tensor type"),
                       (lambda: backend.broadcast(torch.zeros(2), SIZE), "invalid root rank"),
                       (lambda: backend.allgather([[torch.zeros(2)]], []), "non-empty input tensor list"),
                       (lambda: backend.allgather([[torch.zeros(2)] * (SIZE + 1)], [torch.zeros(2)]), "output tensor list")):
        try:
            call()
            raise AssertionError("accepted: " + word)
        except RuntimeError as e:
            assert word in str(e), e


def case_strided():
    for make in (lambda x: x.t(), lambda x: x[::2], lambda x: x[:, 1:3]):
        x = make(value(RANK, (8, 6), torch.float32))
        dist.all_reduce(x)
        same(x, reduced(ReduceOp.SUM, [make(p) for p in everyone((8, 6), torch.float32)]))
        y = make(value(RANK, (8, 6), torch.int64))
        dist.broadcast(y, SIZE - 1)
        same(y, make(value(SIZE - 1, (8, 6), torch.int64)))
    whole = torch.zeros(SIZE, 4, 2)
    parts = [whole[i, :, 0] for i in range(SIZE)]
    dist.all_gather(parts, value(RANK, (4,), torch.float32))
    for part, want in zip(parts, everyone((4,), torch.float32)):
        same(part, want)
    assert (whole[:, :, 1] == 0).all()


def case_movement():
    types = FLOATS + INTS + [torch.bool, torch.complex64] + (MORE if OWN else [])
    for dtype in types:
        x = value(RANK, (6,), dtype)
        dist.broadcast(x, SIZE - 1)
        same(x, value(SIZE - 1, (6,), dtype))
        mine, want = value(RANK, (6,), dtype), everyone((6,), dtype)
        parts = [torch.empty_like(mine) for _ in range(SIZE)]
        dist.all_gather(parts, mine)
        for got, w in zip(parts, want):
            same(got, w)
        whole = torch.empty(6 * SIZE, dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        same(whole, torch.cat(want))
        parts = [torch.empty_like(mine) for _ in range(SIZE)] if RANK == 0 else None
        dist.gather(mine, parts, 0)
        if RANK == 0:
            for got, w in zip(parts, want):
                same(got, w)
        out = torch.empty(6, dtype=dtype)
        dist.scatter(out, want if RANK == SIZE - 1 else None, SIZE - 1)
        same(out, want[RANK])
        out = torch.empty(2 * SIZE, dtype=dtype)
        sent = value(RANK, (2 * SIZE,), dtype, 3)
        dist.all_to_all_single(out, sent)
        same(out, torch.cat([value(r, (2 * SIZE,), dtype, 3)[2 * RANK:2 * RANK + 2] for r in range(SIZE)]))


def case_reduce_scatter():
    for dtype in (torch.float32, torch.int64):
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            want = reduced(op, everyone((3 * SIZE,), dtype))[3 * RANK:3 * RANK + 3]
            x, out = value(RANK, (3 * SIZE,), dtype), torch.empty(3, dtype=dtype)
            dist.reduce_scatter_tensor(out, x, op)
            same(out, want)
            out = torch.empty(3, dtype=dtype)
            dist.reduce_scatter(out, list(x.chunk(SIZE)), op)
            same(out, want)
            x = value(RANK, (11,), dtype)
            dist.reduce(x, SIZE - 1, op)
            if RANK == SIZE - 1:
                same(x, reduced(op, everyone((11,), dtype)))


def case_all_to_all_splits():
    counts = [[(r + 2 * p) % 4 for p in range(SIZE)] for r in range(SIZE)]
    x = value(RANK, (sum(counts[RANK]), 3), torch.float32, 7)
    received = [counts[r][RANK] for r in range(SIZE)]
    out = torch.empty(sum(received), 3)
    dist.all_to_all_single(out, x, received, counts[RANK])
    want = []
    for r in range(SIZE):
        start = sum(counts[r][:RANK])
        want.append(value(r, (sum(counts[r]), 3), torch.float32, 7)[start:start + counts[r][RANK]])
    same(out, torch.cat(want))
    if OWN:
        ins = [torch.full((p + 1,), float(10 * RANK + p)) for p in range(SIZE)]
        outs = [torch.empty(RANK + 1) for _ in range(SIZE)]
        dist.all_to_all(outs, ins)
        for r, got in enumerate(outs):
            same(got, torch.full((RANK + 1,), float(10 * r + RANK)))


def case_messages():
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for tag in (0, 5):
        works = [dist.isend(torch.tensor([RANK * 10 + tag]), right, tag=tag)]
        x = torch.empty(1, dtype=torch.int64)
        works.append(dist.irecv(x, left, tag=tag))
        for w in works:
            w.wait()
        assert x.item() == left * 10 + tag
    a, b = torch.zeros(1), torch.zeros(1)
    if SIZE == 1:
        return
    if RANK == 0:
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
    elif RANK == 1:
        dist.recv(b, 0, tag=2)  # not in the order of sending
        dist.recv(a, 0, tag=1)
        assert (a.item(), b.item()) == (1.0, 2.0)
    dist.barrier()
    if RANK == 0:
        seen = set()
        for _ in range(SIZE - 1):
            x = torch.empty(1)
            source = dist.recv(x)
            assert x.item() == source
            seen.add(source)
        assert seen == set(range(1, SIZE))
    else:
        dist.send(torch.tensor([float(RANK)]), 0)
    dist.barrier()
    ops = [dist.P2POp(dist.isend, torch.full((1000,), float(RANK)), right),
           dist.P2POp(dist.irecv, torch.empty(1000), left)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    same(ops[1].tensor, torch.full((1000,), float(left)))


def case_async():
    x = [torch.full((100_000,), float(RANK + i)) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in x]
    for i, w in enumerate(works):
        assert w.wait(timeout=timedelta(seconds=30)) and w.is_completed()
        same(x[i], torch.full((100_000,), float(sum(range(SIZE)) + SIZE * i)))
    y = torch.ones(1000)
    future = dist.all_reduce(y, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    same(future.wait(), torch.full((1000,), 2.0 * SIZE))
    # A callback that starts an operation and asks for its future.
    y = torch.ones(1000)
    inner = []
    dist.all_reduce(y, async_op=True).get_future().then(
        lambda f: inner.append(dist.all_reduce(f.value()[0], async_op=True).get_future())).wait()
    inner[0].wait()
    same(y, torch.full((1000,), float(SIZE * SIZE)))
    z = torch.ones(10)  # a work that nobody waits for
    dist.all_reduce(z, async_op=True)
    dist.barrier()
    t = torch.zeros(1)
    if SIZE == 1:
        return
    if RANK == 1:
        try:
            dist.irecv(t, 0, tag=77).wait(timeout=timedelta(milliseconds=50))
            raise AssertionError("nobody has sent this")
        except RuntimeError:
            pass
    dist.barrier()
    if RANK == 0:
        dist.send(t, 1, tag=77)


def case_coalesced():
    xs = [value(RANK, (n,), torch.float32, n) for n in (1, 10, 1000)]
    dist.all_reduce_coalesced(xs)
    for x, n in zip(xs, (1, 10, 1000)):
        same(x, reduced(ReduceOp.SUM, everyone((n,), torch.float32, n)))
    xs = [torch.full((4,), float(RANK)) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for x in xs:
        same(x, torch.full((4,), float(sum(range(SIZE)))))
    outs, ins = [torch.empty(SIZE * 2) for _ in range(2)], [torch.full((2,), float(RANK + i)) for i in range(2)]
    with dist._coalescing_manager():
        for o, i in zip(outs, ins):
            dist.all_gather_into_tensor(o, i)
    for k, o in enumerate(outs):
        same(o, torch.cat([torch.full((2,), float(r + k)) for r in range(SIZE)]))


def case_groups():
    evens = dist.new_group(list(range(0, SIZE, 2)))
    last = dist.new_group([SIZE - 1, 0] if SIZE > 1 else [0])
    if RANK % 2 == 0:
        x = torch.tensor([1.0])
        dist.all_reduce(x, group=evens)
        assert x.item() == len(range(0, SIZE, 2))
    if RANK in (0, SIZE - 1):
        x = torch.tensor([float(RANK)])
        dist.broadcast(x, SIZE - 1, group=last)
        assert x.item() == SIZE - 1
    local = dist.new_group([RANK], use_local_synchronization=True)
    x = torch.tensor([5.0])
    dist.all_reduce(x, group=local)
    assert x.item() == 5.0
    other = dist.new_group(backend="gloo")
    dist.barrier(group=other)
    if hasattr(dist, "split_group") and OWN:
        halves = [list(range(SIZE // 2)), list(range(SIZE - 1, SIZE // 2 - 1, -1))] if SIZE > 1 else [[0]]
        half = dist.split_group(split_ranks=halves)
        mine = next(h for h in halves if RANK in h)
        x = torch.tensor([float(RANK)])
        dist.broadcast(x, group=half, group_src=0)
        assert x.item() == mine[0] and dist.get_rank(half) == mine.index(RANK), (x, mine)
        of_half = dist.split_group(half, [[len(mine) - 1]])
        assert (of_half is dist.GroupMember.NON_GROUP_MEMBER) == (RANK != mine[-1])
    for g in (evens, last, local, other):
        if g is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(g)


def case_objects():
    things = [None] * SIZE
    dist.all_gather_object(things, {"rank": RANK, "list": list(range(RANK))})
    assert [t["rank"] for t in things] == list(range(SIZE))
    box = ["from 0", 1] if RANK == 0 else [None, None]
    dist.broadcast_object_list(box, 0)
    assert box == ["from 0", 1]
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(SIZE)] if RANK == 0 else None, 0)
    assert out == [f"for {RANK}"]


def case_monitored_barrier():
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    if not OWN:
        return
    group = dist.new_group()
    if RANK == SIZE - 1 and SIZE > 1:
        time.sleep(0.6)
    elif SIZE > 1:
        try:
            dist.monitored_barrier(group, timeout=timedelta(milliseconds=200))
            raise AssertionError("the last rank did not come")
        except RuntimeError as e:
            assert RANK or f"Rank {SIZE - 1} failed to pass monitoredBarrier in 200 ms" in str(e), e
    group = dist.new_group()
    if RANK == 0 and SIZE > 1:
        try:
            dist.monitored_barrier(group, timeout=timedelta(0))
            raise AssertionError("nobody else came")
        except RuntimeError as e:
            assert "Rank 0 timed out in monitoredBarrier" in str(e), e


def case_errors():
    x = torch.ones(3)
    for call in (lambda: dist.broadcast(x.to_sparse(), 0), lambda: dist.all_gather([torch.empty(2)] * SIZE, x),
                 lambda: dist.all_gather_into_tensor(torch.empty(2), x)):
        try:
            call()
            raise AssertionError("accepted")
        except (RuntimeError, ValueError):
            pass
    if not OWN or SIZE < 2:
        return
    group = dist.new_group()
    try:
        dist.all_reduce(torch.ones(3 if RANK else 4), group=group)
        raise AssertionError("ranks gave different sizes")
    except dist.DistBackendError as e:
        assert "dlcoll: " in str(e), e


def case_ddp():
    torch.manual_seed(0)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))  # noqa: E731
    alone, shared = make(), make()
    shared.load_state_dict(alone.state_dict())
    ddp = torch.nn.parallel.DistributedDataParallel(shared, bucket_cap_mb=0.001)
    a, b = torch.optim.SGD(alone.parameters(), 0.1), torch.optim.SGD(ddp.parameters(), 0.1)
    for step in range(5):
        data = [torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(SIZE)]
        a.zero_grad(), b.zero_grad()
        (sum(alone(d).square().mean() for d in data) / SIZE).backward()
        ddp(data[RANK]).square().mean().backward()
        a.step(), b.step()
    for p, q in zip(alone.parameters(), shared.parameters()):
        torch.testing.assert_close(p, q)
    ddp.register_comm_hook(None, lambda state, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future()
                           .then(lambda f: f.value()[0] / SIZE))
    ddp(data[RANK]).square().mean().backward()


def case_fsdp2():
    from torch.distributed.fsdp import fully_shard

    if not OWN:
        return
    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    shared = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    shared.load_state_dict(alone.state_dict())
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    for layer in shared:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(shared, mesh=mesh)
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    alone(x).square().mean().backward()
    shared(x).square().mean().backward()
    for p, q in zip(alone.parameters(), shared.parameters()):
        torch.testing.assert_close(p.grad, q.grad.full_tensor())


def case_functional():
    import torch.distributed._functional_collectives as fc

    def step(x):
        y = fc.all_reduce(x * 2, "sum", dist.group.WORLD)
        return getattr(fc, "all_gather_single", fc.all_gather_tensor)(y + 1, 0, dist.group.WORLD)

    x = torch.full((4,), float(RANK))
    want = torch.full((4 * SIZE,), 2.0 * sum(range(SIZE)) + 1)
    same(step(x) + 0, want)
    if os.environ.get("BACKEND_COMPILE"):
        same(torch.compile(step, backend="aot_eager", fullgraph=True)(x) + 0, want)


def case_dtensor():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(8.0 * SIZE).reshape(SIZE * 2, 4)
    d = distribute_tensor(whole, mesh, [Shard(0)])
    same((d @ d.t()).redistribute(mesh, [Replicate()]).to_local(), whole @ whole.t())
    same(d.sum().full_tensor(), whole.sum())


def case_loader():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return torch.tensor(i)

    seen = [int(x) for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=2) for x in batch]
    assert seen == list(range(8))
    dist.barrier()


def main():
    global RANK, SIZE
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=60))
    RANK, SIZE = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    rank_cases.run(rank_cases.chosen(globals(), sys.argv[2:]))


main()
