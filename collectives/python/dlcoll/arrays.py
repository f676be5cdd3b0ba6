"""Communicators whose operations take numpy arrays.

Arrays must be of a type that dlcoll.h has, and C-contiguous or, in collective operations, blocks of one length at one
distance: a[:, 2:5] and a[::3] of a C-contiguous array are. bfloat16 and the 8-bit floats are those of ml_dtypes.
Counts, timeouts and errors are those of dlcoll.h, but timeouts are in seconds here. A communicator is used by one
thread at a time. Every operation raises dlcoll.Error, which names the rank at fault.
"""
import copy
import ctypes
import functools
import pickle
from ctypes import CFUNCTYPE, POINTER, byref, c_char, c_int, c_int64, c_size_t, c_void_p
from typing import Any, List, Optional, Sequence, Union

import numpy as np

from ._lib import (ENOSUP, ESTATE, IN_PROGRESS, OP_MAY_FAIL, OPS, PERSISTENT, SYNCHRONOUS, Bytes, Error, Graph,
                   GroupOptions, Layout, MessageInfo, InitOptions, Options, THREAD_MULTIPLE, check, lib)

DTYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
          "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11, "int16": 32, "uint16": 33,
          "bool": 34}


PAIRS = {("int16", "int32"): 40, ("int32", "int32"): 41, ("int64", "int32"): 42, ("int64", "int64"): 43,
         ("float32", "int32"): 44, ("float64", "int32"): 45, ("float64", "int64"): 46}


ANY = -1  # any rank, or any tag

ELEMENT_0, ELEMENT_MAX = 1 << 20, 65536  # complex numbers and structs: only Reductions combine them


class Reduction:
    """A reduction of the program's own, given as `op`: fn(acc, x) changes the array acc to acc op x, element by
    element. It must be associative and, unless `ordered`, commutative. If it raises an exception on any rank, the
    operation raises an Error on all of them, on that rank with the exception as its __cause__."""

    def __init__(self, fn, dtype, ordered: bool = False):
        self._op, self._type, self._raised = c_int(), np.dtype(dtype), None

        def call(acc, x, count, _dtype, _ctx):
            try:
                of = (c_char * (count * self._type.itemsize)).from_address
                fn(np.frombuffer(of(acc), self._type), np.frombuffer(of(x), self._type))
            except BaseException as e:  # ctypes would print it, and go on
                self._raised = e
                lib.dlcoll_op_fail(f"{type(e).__name__}: {e}".encode())

        self._call = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_int, c_void_p)(call)
        check(lib.dlcoll_op_create_user(byref(self._op), self._call, None, OP_MAY_FAIL | (1 if ordered else 0)))

    def __del__(self):
        if self._op.value:
            lib.dlcoll_op_free(self._op)


Op = Union[str, Reduction]


def _check(code: int, comm, op: Optional[Op]) -> int:
    """As check(); an exception of the operation's own reduction is the Error's cause."""
    try:
        return check(code, comm)
    except Error as e:
        if not isinstance(op, Reduction) or op._raised is None:
            raise
        raised, op._raised = op._raised, None
        raise e from raised


def _op(op: Op, x: np.ndarray) -> int:
    if isinstance(op, str):
        return OPS[op]
    if op._type != x.dtype:
        raise TypeError(f"the reduction is one of {op._type}, and the array of {x.dtype}")
    return op._op.value


@functools.lru_cache(maxsize=None)
def _complex_product(dtype: np.dtype) -> Reduction:
    return Reduction(lambda acc, x: np.multiply(acc, x, out=acc), dtype)


def _as_real(x: np.ndarray, out: np.ndarray, op: Op):
    """Complex numbers are summed as pairs of real ones; products have a function."""
    if not isinstance(op, str) or getattr(x, "dtype", None) not in (np.complex64, np.complex128):
        return x, out, op
    if op == "prod":
        return x, out, _complex_product(x.dtype)
    if op in OPS and op not in ("sum", "avg"):
        raise Error(ENOSUP, -1, f"{op} is not defined for {x.dtype}: complex numbers have sum, avg and prod")
    if op not in OPS or out.dtype != x.dtype:
        return x, out, op
    real = np.float32 if x.dtype == np.complex64 else np.float64
    return x[..., None].view(real), out[..., None].view(real), op


def located(value, index=np.int32) -> np.dtype:
    """The type of an element with the fields `value` and `index`, for the reductions minloc and maxloc."""
    names = (np.dtype(value).name, np.dtype(index).name)
    if names not in PAIRS:
        raise TypeError(f"libdlcoll does not have pairs of {names[0]} and {names[1]}")
    return np.dtype([("value", value), ("index", index)], align=True)


def _dtype(a: np.ndarray) -> int:
    if a.dtype.names == ("value", "index"):
        names = tuple(a.dtype[name].name for name in a.dtype.names)
        if names in PAIRS and a.dtype == located(*names):
            return PAIRS[names]
    if a.dtype.kind in "cV" and 0 < a.dtype.itemsize <= ELEMENT_MAX and not a.dtype.hasobject:
        return ELEMENT_0 + a.dtype.itemsize
    if a.dtype.name not in DTYPES or not a.dtype.isnative:
        raise TypeError(f"libdlcoll does not have the type {a.dtype}")
    return DTYPES[a.dtype.name]


def _data(a: np.ndarray, write: bool = False) -> c_void_p:
    """The address of an array's elements."""
    if not isinstance(a, np.ndarray):
        raise TypeError(f"must be a numpy array, not {type(a).__name__}")
    if write and not a.flags.writeable:
        raise ValueError("the array is read-only")
    return c_void_p(a.ctypes.data)


def _layout(a: Optional[np.ndarray]) -> Optional[Layout]:
    """Where the elements are; None: one after the other."""
    if a is None or a.flags.c_contiguous:
        return None
    dims = [(n, step) for n, step in zip(a.shape, a.strides) if n > 1]
    length, blocks, stride, size = 1, 1, 0, a.itemsize
    while dims and dims[-1][1] == length * size:
        length *= dims.pop()[0]
    if dims:
        blocks, stride = dims.pop()
    while dims and dims[-1][1] == blocks * stride:
        blocks *= dims.pop()[0]
    if dims or stride < length * size or stride % size:
        raise ValueError("the array is not in blocks of one length at one distance (numpy.ascontiguousarray makes "
                         "a copy that is)")
    return Layout(ctypes.sizeof(Layout), 1, 0, blocks, length, stride // size, None, None)


def _sizes(values: Optional[Sequence[int]]):
    return None if values is None else (c_size_t * len(values))(*values)


def _check_sizes(part: np.ndarray, whole: np.ndarray, parts: int = 1) -> None:
    if part.size * parts != whole.size or part.dtype != whole.dtype:
        raise ValueError(f"{parts} x {part.size} elements of {part.dtype.name} were expected to equal {whole.size} "
                         f"of {whole.dtype.name}")


class Message:
    """A message that was received or found: `source` (a rank), `tag`, `count` of elements, and `bytes`."""

    def __init__(self):
        self._info = MessageInfo(ctypes.sizeof(MessageInfo), 1, -1, -1)

    source = property(lambda self: self._info.source)
    tag = property(lambda self: self._info.tag)
    count = property(lambda self: self._info.count)
    bytes = property(lambda self: self._info.bytes)

    def __repr__(self) -> str:
        return f"Message(source={self.source}, tag={self.tag}, count={self.count}, bytes={self.bytes})"


class Work:
    """An operation under way. It keeps its arrays alive; the program must not touch them before wait() is True. One
    that is dropped is waited for; a receive that no message has matched is cancelled."""

    message: Optional[Message] = None  #: of recv_upto() and mrecv(), once it is complete

    def __init__(self, handle: c_void_p, comm: "Comm", arrays: Sequence[np.ndarray], op: Optional[Op] = None):
        self._handle, self._comm, self._arrays, self._op = handle, comm, arrays, op

    def start(self) -> None:
        """Begins one of Comm.persistent(), which may be started again once it is complete."""
        check(lib.dlcoll_start(self._handle), self._comm._comm)

    def wait(self, seconds: Optional[float] = None) -> bool:
        """True: the operation is complete. False: it did not complete within `seconds` (None: no limit)."""
        ms = -1 if seconds is None else int(seconds * 1000)
        return _check(lib.dlcoll_wait_for(self._handle, c_int64(ms)), self._comm._comm, self._op) != IN_PROGRESS

    def cancel(self) -> bool:
        """Cancels a receive: wait() then raises an Error. False: it has a message already."""
        code = lib.dlcoll_cancel(self._handle)
        return code != ESTATE and check(code, self._comm._comm) == 0

    def __del__(self):
        if self._handle and self._comm._comm:
            lib.dlcoll_work_drop(self._handle)  # until it returns the library uses the arrays
            self._handle = None


class Future(Work):
    """The work handle of split(), group(), dup() or exchange() with wait=False; result() waits for what it makes."""

    def __init__(self, handle: c_void_p, comm: "Comm", made, finish, arrays: Sequence[np.ndarray] = ()):
        super().__init__(handle, comm, arrays)
        self._made, self._finish = made, finish

    def result(self):
        """The communicator, or the list of bytes, once it is made; raises an Error if it could not be made."""
        self.wait()
        made, self._finish = self._finish(self._made), lambda _: made
        return made


class Comm:
    """A communicator. Comm() is that of all workers of the job; split() and group() make smaller ones.

    thread_multiple: several threads may call on it, and on those made from it, at the same time.
    """

    _flags, _owner = 0, None

    def __init__(self, _handle: Optional[c_void_p] = None, *, thread_multiple: bool = False):
        self._comm = _handle or c_void_p()
        if not _handle:
            options = InitOptions(ctypes.sizeof(InitOptions), 2, flags=THREAD_MULTIPLE if thread_multiple else 0)
            check(lib.dlcoll_init(byref(self._comm), byref(options)))
        self.rank: int = lib.dlcoll_rank(self._comm)
        self.size: int = lib.dlcoll_size(self._comm)
        self.local_rank: int = lib.dlcoll_local_rank(self._comm)

    def close(self, finalize: bool = True) -> None:
        """Frees the communicator, after all ranks have called this; finalize=False: at once."""
        comm, self._comm = self._comm, None
        if comm:
            try:
                if finalize:
                    check(lib.dlcoll_finalize(comm), comm)
            finally:
                lib.dlcoll_destroy(comm)

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self.close(finalize=kind is None)

    def _call(self, function, *args, arrays=(), wait=True, timeout=None, tag=0, flags=0,
              op=None) -> Optional[Work]:
        options = self._options(tag, timeout, self._flags | flags)
        wait = wait and not self._flags
        layouts = [_layout(a) for a in arrays]
        if any(layouts):
            options.send_layout = layouts[0] and ctypes.pointer(layouts[0])
            options.recv_layout = layouts[-1] and ctypes.pointer(layouts[-1])
        work = c_void_p()
        _check(function(*args, self._comm, byref(options), None if wait else byref(work)), self._comm, op)
        return None if wait else Work(work, self._owner or self, arrays, op)

    @staticmethod
    def _options(tag: int, timeout: Optional[float], flags: int = 0) -> Options:
        ms = (int(timeout * 1000) or 1) if timeout else 0  # 0: the communicator's timeout
        return Options(ctypes.sizeof(Options), 2, tag, ms, flags=flags)

    def persistent(self) -> "Comm":
        """A view of this communicator whose operations only return a Work; its start() begins them, again and again."""
        other = copy.copy(self)
        other._flags, other._owner = PERSISTENT, self
        return other

    def _reduce(self, function, x, op, out, wait, timeout, *root):
        result = x if out is None else out
        x, out, op = _as_real(x, result, op)
        _check_sizes(x, out)
        work = self._call(function, _data(x), _data(out, True), c_size_t(x.size), _dtype(x), _op(op, x), *root,
                          arrays=(x, out), wait=wait, timeout=timeout, op=op)
        return work or result

    # Each operation returns the array with the result or, with wait=False, a Work. timeout is in seconds (None:
    # the communicator's).

    def all_reduce(self, x: np.ndarray, op: Op = "sum", out: Optional[np.ndarray] = None, wait: bool = True,
                   timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """out[i] = x[i] of all ranks, reduced by `op`. out defaults to x."""
        return self._reduce(lib.dlcoll_all_reduce, x, op, out, wait, timeout)

    def reduce(self, x: np.ndarray, root: int = 0, op: Op = "sum", out: Optional[np.ndarray] = None,
               wait: bool = True, timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """As all_reduce, with the result on rank `root` only."""
        return self._reduce(lib.dlcoll_reduce, x, op, out, wait, timeout, root)

    def scan(self, x: np.ndarray, op: Op = "sum", out: Optional[np.ndarray] = None, wait: bool = True,
             timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """out[i] = x[i] of ranks 0 to this one, reduced in their order. out defaults to x."""
        return self._reduce(lib.dlcoll_scan, x, op, out, wait, timeout)

    def exscan(self, x: np.ndarray, op: Op = "sum", out: Optional[np.ndarray] = None, wait: bool = True,
               timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """As scan, without this rank's own x; on rank 0 `out` stays as it is."""
        return self._reduce(lib.dlcoll_exscan, x, op, out, wait, timeout)

    def broadcast(self, x: np.ndarray, root: int = 0, wait: bool = True,
                  timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """x = x of rank `root`."""
        work = self._call(lib.dlcoll_broadcast, _data(x), _data(x, True), c_size_t(x.size), _dtype(x), root,
                          arrays=(x,), wait=wait, timeout=timeout)
        return work or x

    def all_gather(self, x: np.ndarray, out: Optional[np.ndarray] = None, wait: bool = True,
                   timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """out[i] = x of rank i. out: `size` times the elements of x."""
        out = np.empty((self.size, *x.shape), x.dtype) if out is None else out
        _check_sizes(x, out, self.size)
        work = self._call(lib.dlcoll_all_gather, _data(x), _data(out, True), c_size_t(x.size), _dtype(x),
                          arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def gather(self, x: np.ndarray, root: int = 0, out: Optional[np.ndarray] = None, wait: bool = True,
               timeout: Optional[float] = None) -> Union[np.ndarray, Work, None]:
        """As all_gather, with the result on rank `root` only; the other ranks return None."""
        if self.rank == root:
            out = np.empty((self.size, *x.shape), x.dtype) if out is None else out
            _check_sizes(x, out, self.size)
        target = _data(out, True) if self.rank == root else None
        work = self._call(lib.dlcoll_gather, _data(x), target, c_size_t(x.size), _dtype(x), root,
                          arrays=(x, out), wait=wait, timeout=timeout)
        return work or (out if self.rank == root else None)

    def scatter(self, x: Optional[np.ndarray], out: np.ndarray, root: int = 0, wait: bool = True,
                timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """out = part i of x of rank `root`, on rank i. x: `size` times the elements of out; ignored elsewhere."""
        if self.rank == root:
            _check_sizes(out, x, self.size)
        source = _data(x) if self.rank == root else None
        work = self._call(lib.dlcoll_scatter, source, _data(out, True), c_size_t(out.size), _dtype(out), root,
                          arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray, op: Op = "sum", wait: bool = True,
                       timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """out = this rank's part of what all_reduce of x would give. x: `size` times the elements of out."""
        result = out
        x, out, op = _as_real(x, out, op)
        _check_sizes(out, x, self.size)
        work = self._call(lib.dlcoll_reduce_scatter, _data(x), _data(out, True), c_size_t(out.size), _dtype(x),
                          _op(op, x), arrays=(x, out), wait=wait, timeout=timeout, op=op)
        return work or result

    def all_to_all(self, x: np.ndarray, out: np.ndarray, wait: bool = True,
                   timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """Part i of out = this rank's part of x of rank i."""
        _check_sizes(x, out)
        if x.size % self.size:
            raise ValueError(f"{x.size} elements cannot be divided into {self.size} equal parts")
        work = self._call(lib.dlcoll_all_to_all, _data(x), _data(out, True), c_size_t(x.size // self.size),
                          _dtype(x), arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def all_to_all_v(self, x: np.ndarray, counts: Sequence[int], out: np.ndarray, out_counts: Sequence[int],
                     displs: Optional[Sequence[int]] = None, out_displs: Optional[Sequence[int]] = None,
                     wait: bool = True, timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """counts[i] elements of x go to rank i, out_counts[i] of out come from it. out may be x."""
        self._check_parts(x, counts, displs, self.size)
        self._check_parts(out, out_counts, out_displs, self.size)
        work = self._call(lib.dlcoll_all_to_all_v, _data(x), _sizes(counts), _sizes(displs), _data(out, True),
                          _sizes(out_counts), _sizes(out_displs), _dtype(x), arrays=(x, out), wait=wait,
                          timeout=timeout)
        return work or out

    def all_to_all_w(self, x: Sequence[np.ndarray], out: Sequence[np.ndarray], timeout: Optional[float] = None) -> None:
        """x[i] goes to out[this rank] of rank i; each may be of another type and size."""
        if len(x) != self.size or len(out) != self.size:
            raise ValueError(f"{len(x)} and {len(out)} arrays for {self.size} ranks")
        types, out_types = ((c_int * self.size)(*map(_dtype, arrays)) for arrays in (x, out))
        sent = np.frombuffer(b"".join(a.tobytes() for a in x), np.uint8)
        got = np.empty(sum(a.nbytes for a in out), np.uint8)
        self._call(lib.dlcoll_all_to_all_w, _data(sent), _sizes([a.size for a in x]), None, types, _data(got, True),
                   _sizes([a.size for a in out]), None, out_types, timeout=timeout)
        at = 0
        for a in out:
            a[...] = np.frombuffer(got[at:at + a.nbytes].tobytes(), a.dtype).reshape(a.shape)
            at += a.nbytes

    def neighbor_all_gather(self, x: np.ndarray, out: np.ndarray, sources: Sequence[int], dests: Sequence[int],
                            out_counts: Optional[Sequence[int]] = None, out_displs: Optional[Sequence[int]] = None,
                            wait: bool = True, timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """x goes to the ranks of dests; block k of out is x of rank sources[k]: as large as this rank's, or of
        out_counts[k] elements."""
        graph, lists = self._graph(sources, dests)
        if out_counts is None:
            _check_sizes(x, out, len(sources))
            work = self._call(lib.dlcoll_neighbor_all_gather, _data(x), _data(out, True), c_size_t(x.size), _dtype(x),
                              byref(graph), arrays=(x, out), wait=wait, timeout=timeout)
        else:
            self._check_parts(out, out_counts, out_displs, len(sources))
            work = self._call(lib.dlcoll_neighbor_all_gather_v, _data(x), c_size_t(x.size), _data(out, True),
                              _sizes(out_counts), _sizes(out_displs), _dtype(x), byref(graph), arrays=(x, out),
                              wait=wait, timeout=timeout)
        return work or out

    def neighbor_all_to_all(self, x: np.ndarray, out: np.ndarray, sources: Sequence[int], dests: Sequence[int],
                            counts: Optional[Sequence[int]] = None, out_counts: Optional[Sequence[int]] = None,
                            displs: Optional[Sequence[int]] = None, out_displs: Optional[Sequence[int]] = None,
                            wait: bool = True, timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """Block k of x goes to rank dests[k], block k of out comes from rank sources[k]: equal blocks, or of
        counts[k] and out_counts[k] elements."""
        graph, lists = self._graph(sources, dests)
        if counts is None and out_counts is None:
            count = out.size // len(sources) if len(sources) else x.size // max(len(dests), 1)
            if count * len(sources) != out.size or count * len(dests) != x.size or x.dtype != out.dtype:
                raise ValueError(f"{x.size} and {out.size} elements are not blocks for {len(dests)} and "
                                 f"{len(sources)} ranks")
            work = self._call(lib.dlcoll_neighbor_all_to_all, _data(x), _data(out, True), c_size_t(count), _dtype(x),
                              byref(graph), arrays=(x, out), wait=wait, timeout=timeout)
        else:
            self._check_parts(x, counts, displs, len(dests))
            self._check_parts(out, out_counts, out_displs, len(sources))
            work = self._call(lib.dlcoll_neighbor_all_to_all_v, _data(x), _sizes(counts), _sizes(displs),
                              _data(out, True), _sizes(out_counts), _sizes(out_displs), _dtype(x), byref(graph),
                              arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    @staticmethod
    def _graph(sources: Sequence[int], dests: Sequence[int]):
        lists = (c_int * len(sources))(*sources), (c_int * len(dests))(*dests)
        pointers = [ctypes.cast(numbers, c_void_p) for numbers in lists]
        return Graph(ctypes.sizeof(Graph), 1, 0, pointers[0], len(sources), pointers[1], len(dests)), lists

    @staticmethod
    def _check_parts(a: np.ndarray, counts: Sequence[int], displs: Optional[Sequence[int]], parts: int) -> None:
        if len(counts) != parts or (displs is not None and len(displs) != parts):
            raise ValueError(f"{parts} counts and displacements are needed, one for each part")
        at = 0
        for i, count in enumerate(counts):
            at = at if displs is None else displs[i]
            if count and at + count > a.size:
                raise ValueError(f"part {i} is not in the array")
            at += count

    def send(self, x: np.ndarray, peer: int, tag: int = 0, wait: bool = True, timeout: Optional[float] = None,
             synchronous: bool = False) -> Optional[Work]:
        """Returns when x may be used again; synchronous: when the message has been received."""
        return self._call(lib.dlcoll_send, _data(x), c_size_t(x.size), _dtype(x), peer, arrays=(x,), wait=wait,
                          timeout=timeout, tag=tag, flags=SYNCHRONOUS if synchronous else 0)

    def recv(self, x: np.ndarray, peer: int, tag: int = 0, wait: bool = True,
             timeout: Optional[float] = None) -> Union[np.ndarray, Work]:
        """x = the next message of rank `peer` with this tag; both may be dlcoll.ANY. Sizes and types must be equal."""
        work = self._call(lib.dlcoll_recv, _data(x, True), c_size_t(x.size), _dtype(x), peer, arrays=(x,),
                          wait=wait, timeout=timeout, tag=tag)
        return work or x

    def recv_upto(self, x: np.ndarray, peer: int = ANY, tag: int = ANY, wait: bool = True,
                  timeout: Optional[float] = None) -> Union[Message, Work]:
        """The first elements of x = the next message, which may be shorter than x. The Message tells its length; a
        Work has it as `message` once it is complete."""
        return self._receive(lib.dlcoll_recv_upto, x, (peer,), Message(), wait, timeout, tag)

    def mrecv(self, x: np.ndarray, message: Message, wait: bool = True,
              timeout: Optional[float] = None) -> Union[Message, Work]:
        """As recv_upto: the message that mprobe() has found; once."""
        return self._receive(lib.dlcoll_mrecv, x, (), message, wait, timeout, 0)

    def _receive(self, function, x, peer, message, wait, timeout, tag):
        work = self._call(function, _data(x, True), c_size_t(x.size), _dtype(x), *peer, byref(message._info),
                          arrays=(x,), wait=wait, timeout=timeout, tag=tag)
        if work:
            work.message = message
        return work or message

    def probe(self, peer: int = ANY, tag: int = ANY, wait: bool = True,
              timeout: Optional[float] = None) -> Optional[Message]:
        """The message that a receive would get, which is left there; wait=False: None when there is none yet."""
        return self._probe(lib.dlcoll_probe if wait else lib.dlcoll_iprobe, peer, tag, timeout)

    def mprobe(self, peer: int = ANY, tag: int = ANY, wait: bool = True,
               timeout: Optional[float] = None) -> Optional[Message]:
        """As probe, and keeps the message for mrecv()."""
        return self._probe(lib.dlcoll_mprobe if wait else lib.dlcoll_improbe, peer, tag, timeout)

    def _probe(self, function, peer, tag, timeout):
        found = Message()
        code = function(peer, byref(found._info), self._comm, byref(self._options(tag, timeout)))
        return None if check(code, self._comm) == IN_PROGRESS else found

    def barrier(self, timeout: Optional[float] = None) -> Optional[Work]:
        """Returns when every rank has called it."""
        return self._call(lib.dlcoll_barrier, timeout=timeout)

    def exchange(self, thing: Any, wait: bool = True) -> Union[list, Future]:
        """What each rank gave, in the order of the ranks. Objects are pickled: only among ranks that trust each
        other."""
        mine = pickle.dumps(thing)

        def take(made):
            try:
                return [pickle.loads(ctypes.string_at(made[i].data, made[i].len)) for i in range(self.size)]
            finally:
                lib.dlcoll_bytes_free(made)

        return self._make(lib.dlcoll_exchange_bytes_async, mine, c_size_t(len(mine)), made=POINTER(Bytes)(),
                          options=None, finish=take, wait=wait, keep=(mine,))

    def _make(self, function, *args, made, options, finish, wait, keep=()):
        """Calls function(comm, *args, &made, options, &work); an exchange has comm behind &made."""
        work = c_void_p()
        before, behind = ((), (self._comm,)) if keep else ((self._comm,), ())
        check(function(*before, *args, byref(made), *behind, options, None if wait else byref(work)), self._comm)
        return finish(made) if wait else Future(work, self, made, finish, keep)

    def empty(self, shape, dtype=np.float32) -> np.ndarray:
        """A zeroed array in memory that the node's ranks share: operations on such arrays copy least. Valid until
        close()."""
        a = np.dtype(dtype)
        count = int(np.prod(shape))
        memory = count and lib.dlcoll_mem_alloc(self._comm, c_size_t(count * a.itemsize))
        if not memory:
            return np.zeros(shape, a)
        raw = (c_char * (count * a.itemsize)).from_address(memory)
        return np.frombuffer(raw, a, count).reshape(shape)

    def split(self, color: int, key: int = 0, wait: bool = True) -> Union["Comm", Future, None]:
        """A Comm of the ranks that give the same colour, ordered by key, then rank. None for colour -1. Every rank
        calls it."""
        return self._make(lib.dlcoll_comm_split_async, color, key, made=c_void_p(), options=None, finish=_comm_of,
                          wait=wait)

    def dup(self, wait: bool = True) -> Union["Comm", Future]:
        """A Comm of all ranks of this one. Every rank calls it."""
        return self._make(lib.dlcoll_comm_dup, made=c_void_p(), options=None, finish=_comm_of, wait=wait)

    def split_by(self, domain: str, key: int = 0) -> "Comm":
        """A Comm of the ranks in the same domain: "node", "host" (also of several launchers), "memory" (ranks that
        share memory) or "numa". Every rank calls it."""
        group = c_void_p()
        check(lib.dlcoll_comm_split_by(self._comm, _domain(domain), key, byref(group), None), self._comm)
        return Comm(group)

    def domains(self, domain: str) -> List[List[int]]:
        """The ranks of each domain, as those of split_by(); domains are numbered by their lowest rank. Every rank
        calls it."""
        of = (c_int * self.size)()
        count = check(lib.dlcoll_domains(self._comm, _domain(domain), of), self._comm)
        return [[rank for rank in range(self.size) if of[rank] == number] for number in range(count)]

    @property
    def nodes(self) -> List[List[int]]:
        """The ranks of each node; nodes are numbered by their lowest rank."""
        result = []
        for node in range(lib.dlcoll_node_count(self._comm)):
            ranks = (c_int * lib.dlcoll_node_ranks(self._comm, node, None, 0))()
            lib.dlcoll_node_ranks(self._comm, node, ranks, len(ranks))
            result.append(list(ranks))
        return result

    def group(self, ranks: Sequence[int], name: str = "", wait: bool = True) -> Union["Comm", Future, None]:
        """A Comm of the ranks listed, in that order; None on other ranks. Every listed rank calls it."""
        options = GroupOptions(ctypes.sizeof(GroupOptions), 1, 0, 0, name.encode() or None)
        return self._make(lib.dlcoll_comm_new_group_async, (c_int * len(ranks))(*ranks), len(ranks), made=c_void_p(),
                          options=byref(options), finish=_comm_of, wait=wait)


def _domain(name: str) -> int:
    names = "node", "host", "memory", "numa"
    if name not in names:
        raise ValueError(f"domain '{name}' is not one of {', '.join(names)}")
    return names.index(name)


def _comm_of(handle: c_void_p) -> Optional[Comm]:
    return Comm(handle) if handle else None
