"""The backend in Python: the behaviour of process_group.cc for a Python or PyTorch that it has not been built for.

An operation with asyncOp = False runs in the caller's thread. Any other operation gets a work handle of libdlcoll.

PyTorch wraps a work of Python in one of its own, which passes on wait() and get_future() only: is_completed() of a
work under way stays False, and the rank that a receive from any rank met cannot be told. Such receives, and
PREMUL_SUM, are refused here.
"""
import ctypes
import os
import threading
import weakref
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, ReduceOp, Work

from .. import _lib
from .._lib import GroupOptions, InitOptions, Options, Span, lib

_END_OF_GROUP_MS = 2000  # a group that ends waits so long for the others
_U8 = 1
_TYPES = {torch.int8: (0, 1), torch.uint8: (1, 1), torch.int32: (2, 1), torch.uint32: (3, 1), torch.int64: (4, 1),
          torch.uint64: (5, 1), torch.float16: (6, 1), torch.float32: (7, 1), torch.float64: (8, 1),
          torch.bfloat16: (9, 1), torch.float8_e4m3fn: (10, 1), torch.float8_e5m2: (11, 1), torch.int16: (32, 1),
          torch.uint16: (33, 1), torch.bool: (34, 1), torch.complex32: (6, 2), torch.complex64: (7, 2),
          torch.complex128: (8, 2)}
_OPS = {ReduceOp.SUM: 0, ReduceOp.PRODUCT: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3, ReduceOp.AVG: 4, ReduceOp.BAND: 32,
        ReduceOp.BOR: 33, ReduceOp.BXOR: 34}
_REAL_ONLY = (1, 2, 3, 32, 33, 34)


def _fail(text):
    raise dist.DistBackendError("dlcoll: " + text)


def _text(code, comm=None):
    kind = "timeout in " if code == _lib.ETIMEDOUT else ""  # the word that programs look for
    return kind + _lib.error_text(code, comm).text.decode(errors="replace")


def _raise(code, comm=None):
    _fail(_text(code, comm))


def _type(t, moves_only):
    found = _TYPES.get(t.dtype)
    if found is None and not moves_only:
        _fail(f"reductions of {t.dtype} are not supported")
    return found or (_U8, t.element_size())


def _op(op, t):
    code = next((v for k, v in _OPS.items() if op == k), None)
    if code is None:
        _fail("PREMUL_SUM needs the C++ extension: python -m dlcoll.torch --build")
    if t.is_complex() and code in _REAL_ONLY:
        raise RuntimeError("dlcoll: this reduction is not defined for complex tensors")
    return code


def _sizes(values):
    return (c_size_t * len(values))(*values)


class _Comm:
    """A communicator, shared by the group and the works on it."""

    def __init__(self):
        self.comm = c_void_p()
        self.entry = threading.Lock()  # one thread at a time calls libdlcoll
        self.parent = None
        self.pending = []

    def close(self):
        comm, self.comm = self.comm, None
        if not comm:
            return
        works, self.pending = [w for w in self.pending if not w.is_completed()], []
        if works:
            lib.dlcoll_abort(comm, b"the process group was destroyed")
            for w in works:
                w._advance(-1)
        else:
            with self.entry:
                lib.dlcoll_barrier(comm, byref(Options(ctypes.sizeof(Options), 1, 0, _END_OF_GROUP_MS)), None)
        lib.dlcoll_destroy(comm)


class _Work(Work):
    """An operation under way, or one that has ended."""

    def __init__(self, comm, outputs, keep, after, op_timeout_ms):
        super().__init__()
        self._comm, self._outputs, self._keep, self._after = comm, outputs, keep, after
        self._handle, self._error, self._ended = c_void_p(), None, False
        self._lock, self._future, self._timeout = threading.Lock(), None, op_timeout_ms

    def _end(self, code):
        if code < 0:
            self._error = dist.DistBackendError("dlcoll: " + _text(code, self._comm.comm))
        else:
            with torch.no_grad():
                for tensor, copy in self._after:
                    tensor.copy_(copy)
        if self._handle:
            lib.dlcoll_work_free(self._handle)
            self._handle = None
        self._keep, self._after, self._ended = (), (), True

    def _fill_future(self):
        if self._error:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._outputs)

    def _advance(self, ms):
        with self._lock:
            if self._ended:
                return True
            code = lib.dlcoll_wait_for(self._handle, c_int64(ms))
            if code == _lib.IN_PROGRESS:
                return False
            self._end(code)
            has_future = self._future is not None
        if has_future:  # its callbacks run without the lock
            self._fill_future()
        return True

    def wait(self, timeout=timedelta(0)):
        ms = int(timeout.total_seconds() * 1000) or -1
        if not self._advance(ms):
            _fail(f"the operation did not complete within {ms} ms")
        if self._error:
            raise self._error
        return True

    def is_completed(self):
        return self._advance(0)

    def is_success(self):
        return self._ended and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._outputs

    def abort(self):
        lib.dlcoll_abort(self._comm.comm, b"aborted by the program")

    def get_future(self):
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._ended:
                    self._fill_future()
                else:
                    threading.Thread(target=self._advance, args=(-1,), daemon=True).start()
            return self._future


def _span(tensors):
    """The addresses from the first to the last element of all tensors."""
    there = [t for t in tensors if t.numel()]
    return (min((t.data_ptr() for t in there), default=0), max((t.data_ptr() + t.nbytes for t in there), default=0))


class _Place:
    """Where the data of one operation lies, and what must be copied back when it is complete."""

    def __init__(self):
        self.keep, self.back = [], []

    def add(self, t, written):
        real = t if t.is_contiguous() else t.contiguous()
        if written and real is not t:
            self.back.append((t, real))
        self.keep.append(real)
        return c_void_p(real.data_ptr())

    def parts(self, tensors, per_element, written, apart=True):
        """Address, counts and displacements: in place where the tensors lie at multiples of an element apart, and no
        other data of the operation lies between them. apart: no other list's data does."""
        counts = [t.numel() * per_element for t in tensors]
        there = [t for t in tensors if t.numel()]
        unit = tensors[0].element_size() // per_element if tensors else 1
        low, high = _span(tensors)
        apart = apart and all(k.data_ptr() >= high or k.data_ptr() + k.nbytes <= low for k in self.keep)
        if apart and all(t.is_contiguous() and (t.data_ptr() - low) % unit == 0 for t in there):
            displs = [(t.data_ptr() - low) // unit if t.numel() else 0 for t in tensors]
            self.keep += tensors
            return c_void_p(low or None), counts, displs
        flat = torch.cat([t.reshape(-1) for t in tensors])
        displs, at = [], 0
        for t in tensors:
            displs.append(at * per_element)
            if written:
                self.back.append((t, flat[at:at + t.numel()].view(t.shape)))
            at += t.numel()
        return self.add(flat, False), counts, displs


def _check_tensor(t, name):
    if t.layout != torch.strided:
        raise RuntimeError(f"dlcoll: {name}: sparse tensors are not supported: use to_dense(), or the backend gloo")
    if t.device.type != "cpu":
        raise RuntimeError(f"dlcoll: {name}: tensors must be on the CPU, not on {t.device}: use the backend "
                           "cpu:dlcoll,cuda:nccl")


def _only(tensors, name):
    if len(tensors) != 1:
        raise ValueError(f"ProcessGroupDlcoll::{name}: requires a single-element tensor list")
    _check_tensor(tensors[0], name)
    return tensors[0]


class _Group(Backend):
    # PyTorch asks the Python class for each of these before it asks its own.
    supports_splitting = supports_coalescing = _supports_time_estimate = supports_shrinking = False
    supports_reconfigure = supports_window = False

    def __init__(self, comm, rank, size, timeout_ms, name):
        super().__init__(rank, size)
        self._comm, self._rank, self._size, self._timeout_ms = comm, rank, size, timeout_ms
        self._name, self._seq = name, 0

    # ------------------------------------------------------------------ the group itself

    def name(self):
        return "dlcoll"

    getBackendName = get_backend_name = name

    def _ms(self, timeout):
        ms = int(timeout.total_seconds() * 1000)
        return ms if ms > 0 else self._timeout_ms

    def set_timeout(self, timeout):
        self._timeout_ms = int(timeout.total_seconds() * 1000)

    _set_default_timeout = set_timeout

    def _live(self):
        if self._comm is None or not self._comm.comm:
            _fail("the process group has been destroyed")
        return self._comm

    def abort(self):
        lib.dlcoll_abort(self._live().comm, b"aborted by the program")

    def shutdown(self):
        comm, self._comm = self._comm, None
        if comm:
            comm.close()

    def get_sequence_number_for_group(self):
        return self._seq

    def _run(self, place, outputs, timeout_ms, is_async, call, tag=0):
        comm = self._live()
        self._seq += 1
        work = _Work(comm, outputs, place.keep, place.back, timeout_ms)
        options = Options(ctypes.sizeof(Options), 1, tag, timeout_ms)
        with comm.entry:
            code = call(comm.comm, byref(options), byref(work._handle) if is_async else None)
        if code < 0:
            _raise(code, comm.comm)
        if not is_async:
            work._end(0)
        elif not work._advance(0):
            comm.pending = [w for w in comm.pending if not w.is_completed()] + [work]
        return work

    def _is_async(self, opts):
        return getattr(opts, "asyncOp", True)

    def _check_lists(self, lists, part, name, equal=True):
        if len(lists) != 1 or len(lists[0]) != self._size:
            raise ValueError(f"ProcessGroupDlcoll::{name}: requires one list of {self._size} tensors")
        for t in lists[0]:
            _check_tensor(t, name)
            if t.dtype != part.dtype:
                raise ValueError(f"ProcessGroupDlcoll::{name}: tensors have different types")
            if equal and t.numel() != part.numel():
                raise ValueError(f"ProcessGroupDlcoll::{name}: tensors have different sizes")

    def _check_sizes(self, whole, part, name):
        _check_tensor(whole, name)
        _check_tensor(part, name)
        if whole.dtype != part.dtype:
            raise RuntimeError(f"dlcoll: {name}: tensors have different types")
        if whole.numel() != part.numel() * self._size:
            raise RuntimeError(f"dlcoll: {name}: the larger tensor must have {self._size} times as many elements as "
                               "the smaller one")

    # ------------------------------------------------------------------ operations

    def broadcast(self, tensors, opts):
        t = _only(tensors, "broadcast")
        dtype, per = _type(t, True)
        p = _Place()
        data = p.add(t, True)
        return self._run(p, tensors, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_broadcast(data, data, c_size_t(t.numel() * per), dtype, opts.rootRank, c, o, h))

    def allreduce(self, tensors, opts):
        t = _only(tensors, "all_reduce")
        dtype, per = _type(t, False)
        op = _op(opts.reduceOp, t)
        p = _Place()
        data = p.add(t, True)
        return self._run(p, tensors, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_all_reduce(data, data, c_size_t(t.numel() * per), dtype, op, c, o, h))

    def allreduce_sparse(self, tensors, opts):
        raise RuntimeError("dlcoll: all_reduce of sparse tensors is not supported: use to_dense(), or the backend "
                           "gloo")

    def allreduce_coalesced(self, tensors, opts):
        dtype, per = _type(tensors[0], False)
        op = _op(opts.reduceOp, tensors[0])
        p, spans = _Place(), []
        for t in tensors:
            _check_tensor(t, "all_reduce_coalesced")
            if t.dtype != tensors[0].dtype:
                raise RuntimeError("dlcoll: all tensors must have one type")
            data = p.add(t, True)
            spans.append(Span(data, data, t.numel() * per))
        spans = (Span * len(spans))(*spans)
        return self._run(p, tensors, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_all_reduce_coalesced(spans, c_size_t(len(spans)), dtype, op, c, o, h))

    def reduce(self, tensors, opts):
        t = _only(tensors, "reduce")
        dtype, per = _type(t, False)
        op = _op(opts.reduceOp, t)
        p = _Place()
        data = p.add(t, True)
        return self._run(p, tensors, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_reduce(data, data, c_size_t(t.numel() * per), dtype, op, opts.rootRank, c, o, h))

    def allgather(self, outputs, inputs, opts):
        t = _only(inputs, "all_gather")
        self._check_lists(outputs, t, "all_gather")
        dtype, per = _type(t, True)
        p = _Place()
        data = p.add(t, False)
        base, counts, displs = p.parts(outputs[0], per, True)
        return self._run(p, outputs[0], self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_all_gather_v(data, base, _sizes(counts), _sizes(displs), dtype, c, o, h))

    def _allgather_base(self, output, input, opts):
        self._check_sizes(output, input, "all_gather_into_tensor")
        dtype, per = _type(input, True)
        p = _Place()
        recv, send = p.add(output, True), p.add(input, False)
        return self._run(p, [output], self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_all_gather(send, recv, c_size_t(input.numel() * per), dtype, c, o, h))

    all_gather_single = _allgather_base

    def _in_turn(self, operation, outputs, inputs, opts):
        if len(outputs) != len(inputs) or not inputs:
            raise RuntimeError("dlcoll: as many outputs as inputs are needed")
        return [operation(o, i, opts) for o, i in zip(outputs, inputs)][-1]  # they complete in order

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts):
        return self._in_turn(self._allgather_base, outputs, inputs, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, outputs, inputs, opts):
        if len(outputs) != self._size or not inputs:
            raise RuntimeError("dlcoll: all_gather_coalesced needs a list of outputs for each rank")
        return [self.allgather([[of_rank[i] for of_rank in outputs]], [t], opts) for i, t in enumerate(inputs)][-1]

    def gather(self, outputs, inputs, opts):
        t = _only(inputs, "gather")
        dtype, per = _type(t, True)
        p = _Place()
        data = p.add(t, False)
        base = counts = displs = None
        if opts.rootRank == self._rank:
            self._check_lists(outputs, t, "gather")
            base, counts, displs = p.parts(outputs[0], per, True)
            counts, displs = _sizes(counts), _sizes(displs)
        elif outputs:
            raise ValueError("ProcessGroupDlcoll::gather: requires empty output on non-root")
        result = outputs[0] if outputs else []
        return self._run(p, result, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_gather_v(data, c_size_t(t.numel() * per), base, counts, displs, dtype,
                                             opts.rootRank, c, o, h))

    def scatter(self, outputs, inputs, opts):
        t = _only(outputs, "scatter")
        dtype, per = _type(t, True)
        p = _Place()
        data = p.add(t, True)
        base = counts = displs = None
        if opts.rootRank == self._rank:
            self._check_lists(inputs, t, "scatter")
            base, counts, displs = p.parts(inputs[0], per, False)
            counts, displs = _sizes(counts), _sizes(displs)
        elif inputs:
            raise ValueError("ProcessGroupDlcoll::scatter: requires empty input on non-root")
        return self._run(p, outputs, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_scatter_v(base, counts, displs, data, c_size_t(t.numel() * per), dtype,
                                              opts.rootRank, c, o, h))

    def reduce_scatter(self, outputs, inputs, opts):
        t = _only(outputs, "reduce_scatter")
        self._check_lists(inputs, t, "reduce_scatter", equal=False)
        dtype, per = _type(t, False)
        op = _op(opts.reduceOp, t)
        counts = [part.numel() * per for part in inputs[0]]
        if counts[self._rank] != t.numel() * per:
            raise RuntimeError(f"dlcoll: reduce_scatter: part {self._rank} and the output have different sizes")
        p = _Place()
        send = p.add(torch.cat([part.reshape(-1) for part in inputs[0]]), False)
        recv = p.add(t, True)
        return self._run(p, outputs, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_reduce_scatter_v(send, recv, _sizes(counts), dtype, op, c, o, h))

    def _reduce_scatter_base(self, output, input, opts):
        self._check_sizes(input, output, "reduce_scatter_tensor")
        dtype, per = _type(output, False)
        op = _op(opts.reduceOp, output)
        p = _Place()
        recv, send = p.add(output, True), p.add(input, False)
        return self._run(p, [output], self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_reduce_scatter(send, recv, c_size_t(output.numel() * per), dtype, op, c, o, h))

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts):
        return self._in_turn(self._reduce_scatter_base, outputs, inputs, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _split(self, t, splits, per):
        rows = t.shape[0] if t.dim() else 0
        if not splits:
            if rows % self._size:
                raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
            return [t.numel() * per // self._size] * self._size
        if len(splits) != self._size:
            raise RuntimeError("Number of tensor splits not equal to group size")
        if sum(splits) != rows or min(splits) < 0:
            raise RuntimeError("Split sizes doesn't match total dim 0 size")
        return [n * (t.numel() * per // rows if rows else 0) for n in splits]

    def alltoall_base(self, output, input, output_splits, input_splits, opts):
        _check_tensor(input, "all_to_all_single")
        _check_tensor(output, "all_to_all_single")
        if input.dtype != output.dtype:
            raise RuntimeError("dlcoll: all_to_all_single: types differ")
        dtype, per = _type(input, True)
        sent, received = self._split(input, input_splits, per), self._split(output, output_splits, per)
        p = _Place()
        recv, send = p.add(output, True), p.add(input, False)
        if not output_splits and not input_splits:
            return self._run(p, [output], self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                             lib.dlcoll_all_to_all(send, recv, c_size_t(sent[0]), dtype, c, o, h))
        return self._run(p, [output], self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_all_to_all_v(send, _sizes(sent), None, recv, _sizes(received), None, dtype, c, o,
                                                 h))

    all_to_all_single = alltoall_base

    def alltoall(self, outputs, inputs, opts):
        if len(inputs) != self._size or len(outputs) != self._size:
            raise RuntimeError("dlcoll: all_to_all needs a tensor for each rank")
        for t in (*inputs, *outputs):
            _check_tensor(t, "all_to_all")
            if t.dtype != inputs[0].dtype:
                raise RuntimeError("dlcoll: all tensors must have one type")
        dtype, per = _type(inputs[0], True)
        p = _Place()
        (in_low, in_high), (out_low, out_high) = _span(inputs), _span(outputs)
        apart = in_low >= out_high or out_low >= in_high
        send, sent, from_ = p.parts(inputs, per, False, apart)
        recv, received, to = p.parts(outputs, per, True, apart)
        return self._run(p, outputs, self._ms(opts.timeout), self._is_async(opts), lambda c, o, h:
                         lib.dlcoll_all_to_all_v(send, _sizes(sent), _sizes(from_), recv, _sizes(received),
                                                 _sizes(to), dtype, c, o, h))

    def barrier(self, opts):
        return self._run(_Place(), [], self._ms(opts.timeout), self._is_async(opts),
                         lambda c, o, h: lib.dlcoll_barrier(c, o, h))

    def monitored_barrier(self, opts, wait_all_ranks=False):
        comm, ms = self._live(), int(opts.timeout.total_seconds() * 1000)
        ms = ms if ms >= 0 else self._timeout_ms
        missing, n = (c_int * self._size)(), c_size_t(self._size)
        options = Options(ctypes.sizeof(Options), 1, 0, max(ms, 1))  # 0 would be the communicator's own
        with comm.entry:
            code = lib.dlcoll_monitored_barrier(comm.comm, missing, byref(n), byref(options))
        if code == _lib.ETIMEDOUT and n.value:
            ranks = ", ".join(map(str, missing[:n.value]))
            text = _text(code, comm.comm)
            _fail(f"[Rank {self._rank}]: Rank{'s' if n.value > 1 else ''} {ranks} failed to pass monitoredBarrier "
                  f"in {ms} ms. Rank {self._rank} timed out in monitoredBarrier: {text}")
        if code < 0:
            _raise(code, comm.comm)

    monitoredBarrier = monitored_barrier

    def _message(self, tensors, name, tag, written, call):
        t = _only(tensors, name)
        dtype, per = _type(t, True)
        p = _Place()
        data = p.add(t, written)
        return self._run(p, tensors if written else [], self._timeout_ms, True, lambda c, o, h:
                         call(data, c_size_t(t.numel() * per), dtype, c, o, h), tag)

    def send(self, tensors, peer, tag):
        return self._message(tensors, "send", tag, False, lambda data, n, dtype, c, o, h:
                             lib.dlcoll_send(data, n, dtype, peer, c, o, h))

    def recv(self, tensors, peer, tag):
        return self._message(tensors, "recv", tag, True, lambda data, n, dtype, c, o, h:
                             lib.dlcoll_recv(data, n, dtype, peer, c, o, h))

    def recv_anysource(self, tensors, tag):
        # A work of Python cannot tell PyTorch whose message it received.
        _fail("a receive from any rank needs the C++ extension: python -m dlcoll.torch --build")

    recvAnysource = recv_anysource


_world = lambda: None  # noqa: E731  a weak reference to the _Comm of the default group
_making = threading.Lock()


def _is_launched_world(rank, size):
    env = os.environ
    return bool(env.get("DLAUNCH_SEGMENT_FD")) and (env.get("RANK"), env.get("WORLD_SIZE")) == (str(rank), str(size))


def _store_url(given, rank, made):
    """Where libdlcoll finds a TCPStore: the group's own store, or one that rank 0 serves and names in it."""
    base = given
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    if isinstance(base, dist.TCPStore):
        return f"tcp://{base.host}:{base.port}"
    if rank == 0:
        host = os.environ.get("MASTER_ADDR") or "localhost"
        made.server = dist.TCPStore(host, 0, None, True, wait_for_workers=False)
        given.set("dlcoll/store", f"tcp://{host}:{made.server.port}")
    return given.get("dlcoll/store").decode()


def _make_world(store, rank, size, timeout_ms, name):
    made = _Comm()
    options = InitOptions(ctypes.sizeof(InitOptions), 2, 0, 0, 2, timeout_ms, timeout_ms, None, None,
                          name.encode() or None)
    opened = c_void_p()
    if name or not _is_launched_world(rank, size):
        url = _store_url(store, rank, made)
        code = lib.dlcoll_store_open(byref(opened), url.encode(), 0, c_int64(timeout_ms))
        if code < 0:
            _raise(code)
        options.store, options.rank, options.world_size = opened, rank, size
    with _making:
        code = lib.dlcoll_init(byref(made.comm), byref(options))
        text = _text(code) if code < 0 else ""
    lib.dlcoll_store_close(opened)
    if code < 0:
        _fail(text)
    return made


def create(store, rank, size, timeout, name, ranks, backend):
    """A group. ranks: those of the default group that are in it; empty: the group is the default group."""
    global _world
    timeout_ms, world = int(timeout * 1000), _world()
    if ranks and world is not None and world.comm:
        comm = _Comm()
        comm.parent = world
        options = GroupOptions(ctypes.sizeof(GroupOptions), 1, 0, timeout_ms, name.encode())
        with world.entry:
            code = lib.dlcoll_comm_new_group(world.comm, (c_int * len(ranks))(*ranks), len(ranks), byref(comm.comm),
                                             byref(options))
        if code < 0:
            _raise(code, world.comm)
    else:
        comm = _make_world(store, rank, size, timeout_ms, name if ranks else "")
        if not ranks:
            _world = weakref.ref(comm)
    return _Group(comm, rank, size, timeout_ms, backend)


__all__ = ["create"]
