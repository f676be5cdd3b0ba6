"""A binding of libdlcoll for numpy arrays, in one file. Copy it and import it:

    import dlcoll, numpy as np
    world = dlcoll.Comm()                        # of all workers of the job
    x = np.full(1000, world.rank, np.float32)
    world.all_reduce(x)                          # sum, in place
    total = world.all_reduce(x, "max", out=np.empty_like(x))
    work = world.broadcast(x, root=0, wait=False)
    work.wait()

As a program it tests itself:  dlaunch --nproc_per_node 4 examples/dlcoll.py

Arrays must be C-contiguous and of a type of dlcoll.h; bfloat16 and the 8-bit floats are those of ml_dtypes. The
library is $DLCOLL_LIBRARY, or libdlcoll.so.0 in ../build, or the installed one. dlcoll(3) describes the operations
and their failures.
"""
import ctypes
import os
import pickle
from ctypes import POINTER, byref, c_char, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

DTYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
          "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11, "int16": 32, "uint16": 33,
          "bool": 34}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4, "band": 32, "bor": 33, "bxor": 34, "land": 35,
       "lor": 36}
IN_PROGRESS = 1


def _load():
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, "..", "build", "libdlcoll.so.0")
    path = os.environ.get("DLCOLL_LIBRARY") or (beside if os.path.exists(beside) else "libdlcoll.so.0")
    lib = ctypes.CDLL(path)
    lib.dlcoll_strerror.restype = ctypes.c_char_p
    lib.dlcoll_mem_alloc.restype = c_void_p
    for name in ("destroy", "work_free", "bytes_free", "mem_free"):
        getattr(lib, "dlcoll_" + name).restype = None
    return lib


class _ErrorText(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", c_uint32), ("code", c_int32), ("rank", c_int32), ("pid", c_int32),
                ("signal", c_int32), ("exit_code", c_int32), ("seq", c_uint64), ("op", c_char * 32),
                ("host", c_char * 256), ("text", c_char * 512)]


class _Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", c_uint32), ("tag", c_int32), ("timeout_ms", c_int64)]


class _Bytes(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("len", c_size_t)]


class Error(Exception):
    """A failed call: code (DLCOLL_E...), the rank that caused it (-1: unknown), and a text."""

    def __init__(self, code, rank, text):
        super().__init__(text)
        self.code, self.rank = code, rank


_lib = _load()


def _check(code, comm=None):
    if code >= 0:
        return code
    e = _ErrorText(size=ctypes.sizeof(_ErrorText), version=1)
    _lib.dlcoll_last_error(comm, byref(e))
    if e.code == code:
        raise Error(code, e.rank, e.text.decode(errors="replace"))
    raise Error(code, -1, _lib.dlcoll_strerror(code).decode())


def _dtype(a):
    if a.dtype.name not in DTYPES or not a.dtype.isnative:
        raise TypeError(f"libdlcoll has no {a.dtype}")
    return DTYPES[a.dtype.name]


def _data(a, write=False):
    """The address of an array's elements."""
    if not isinstance(a, np.ndarray):
        raise TypeError(f"must be a numpy array, not {type(a).__name__}")
    if not a.flags.c_contiguous:
        raise ValueError("the array must be C-contiguous (numpy.ascontiguousarray makes it so)")
    if write and not a.flags.writeable:
        raise ValueError("the array is read-only")
    return c_void_p(a.ctypes.data)


def _fit(a, b, times=1):
    if a.size * times != b.size or a.dtype != b.dtype:
        raise ValueError(f"{a.size} x {times} {a.dtype.name} and {b.size} {b.dtype.name} do not fit each other")


class Work:
    """An operation that may still run. It keeps its arrays alive."""

    def __init__(self, handle, comm, arrays):
        self._handle, self._comm, self._arrays = handle, comm, arrays

    def wait(self, seconds=None):
        """Waits at most this number of seconds. True if the operation is complete."""
        ms = -1 if seconds is None else int(seconds * 1000)
        return _check(_lib.dlcoll_wait_for(self._handle, c_int64(ms)), self._comm._comm) != IN_PROGRESS

    def __del__(self):
        if self._handle and self._comm._comm:
            _lib.dlcoll_wait(self._handle)  # the arrays are the library's until then
            _lib.dlcoll_work_free(self._handle)
            self._handle = None


class Comm:
    """A communicator; without an argument, that of all workers of the job."""

    def __init__(self, _handle=None):
        self._comm = _handle or c_void_p()
        if not _handle:
            _check(_lib.dlcoll_init(byref(self._comm), None))
        self.rank, self.size = _lib.dlcoll_rank(self._comm), _lib.dlcoll_size(self._comm)
        self.local_rank = _lib.dlcoll_local_rank(self._comm)

    def close(self, finalize=True):
        """Waits for the other ranks and leaves; with finalize=False, leaves at once."""
        comm, self._comm = self._comm, None
        if comm:
            try:
                if finalize:
                    _check(_lib.dlcoll_finalize(comm), comm)
            finally:
                _lib.dlcoll_destroy(comm)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.close(finalize=kind is None)

    def _call(self, function, *args, arrays=(), wait=True, timeout=None, tag=0):
        ms = (int(timeout * 1000) or 1) if timeout else 0  # 0 is the default
        options = _Options(ctypes.sizeof(_Options), 1, tag, ms)
        work = c_void_p()
        _check(function(*args, self._comm, byref(options), None if wait else byref(work)), self._comm)
        return None if wait else Work(work, self, arrays)

    # Each method returns the array with the result, or, with wait=False, a Work, whose arrays must not be touched
    # until it is complete. timeout is in seconds.

    def all_reduce(self, x, op="sum", out=None, wait=True, timeout=None):
        out = x if out is None else out
        _fit(x, out)
        work = self._call(_lib.dlcoll_all_reduce, _data(x), _data(out, True), c_size_t(x.size), _dtype(x), OPS[op],
                          arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def reduce(self, x, root=0, op="sum", out=None, wait=True, timeout=None):
        out = x if out is None else out
        _fit(x, out)
        work = self._call(_lib.dlcoll_reduce, _data(x), _data(out, True), c_size_t(x.size), _dtype(x), OPS[op], root,
                          arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def broadcast(self, x, root=0, wait=True, timeout=None):
        work = self._call(_lib.dlcoll_broadcast, _data(x), _data(x, True), c_size_t(x.size), _dtype(x), root,
                          arrays=(x,), wait=wait, timeout=timeout)
        return work or x

    def all_gather(self, x, out=None, wait=True, timeout=None):
        """out[i] is the array of rank i."""
        out = np.empty((self.size, *x.shape), x.dtype) if out is None else out
        _fit(x, out, self.size)
        work = self._call(_lib.dlcoll_all_gather, _data(x), _data(out, True), c_size_t(x.size), _dtype(x),
                          arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def reduce_scatter(self, x, out, op="sum", wait=True, timeout=None):
        """x has `size` parts; out is this rank's part of the sum."""
        _fit(out, x, self.size)
        work = self._call(_lib.dlcoll_reduce_scatter, _data(x), _data(out, True), c_size_t(out.size), _dtype(x),
                          OPS[op], arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def all_to_all(self, x, out, wait=True, timeout=None):
        """Part i of out is this rank's part of the array of rank i."""
        _fit(x, out)
        if x.size % self.size:
            raise ValueError(f"{x.size} elements are no {self.size} equal parts")
        work = self._call(_lib.dlcoll_all_to_all, _data(x), _data(out, True), c_size_t(x.size // self.size),
                          _dtype(x), arrays=(x, out), wait=wait, timeout=timeout)
        return work or out

    def send(self, x, peer, tag=0, wait=True, timeout=None):
        return self._call(_lib.dlcoll_send, _data(x), c_size_t(x.size), _dtype(x), peer, arrays=(x,), wait=wait,
                          timeout=timeout, tag=tag)

    def recv(self, x, peer, tag=0, wait=True, timeout=None):
        work = self._call(_lib.dlcoll_recv, _data(x, True), c_size_t(x.size), _dtype(x), peer, arrays=(x,),
                          wait=wait, timeout=timeout, tag=tag)
        return work or x

    def barrier(self, timeout=None):
        self._call(_lib.dlcoll_barrier, timeout=timeout)

    def exchange(self, thing):
        """The list of the objects of all ranks, sent with pickle: only for ranks that trust each other."""
        mine, everybody = pickle.dumps(thing), POINTER(_Bytes)()
        _check(_lib.dlcoll_exchange_bytes(mine, c_size_t(len(mine)), byref(everybody), self._comm, None), self._comm)
        try:
            return [pickle.loads(ctypes.string_at(everybody[i].data, everybody[i].len)) for i in range(self.size)]
        finally:
            _lib.dlcoll_bytes_free(everybody)

    def empty(self, shape, dtype=np.float32):
        """A zeroed array in memory that the ranks of the node share: operations on it need the fewest copies. It is
        valid until close()."""
        a = np.dtype(dtype)
        count = int(np.prod(shape))
        memory = count and _lib.dlcoll_mem_alloc(self._comm, c_size_t(count * a.itemsize))
        if not memory:
            return np.zeros(shape, a)
        raw = (c_char * (count * a.itemsize)).from_address(memory)
        return np.frombuffer(raw, a, count).reshape(shape)

    def split(self, color, key=0):
        """The Comm of the ranks with the same colour; None for colour -1."""
        group = c_void_p()
        _check(_lib.dlcoll_comm_split(self._comm, color, key, byref(group), None), self._comm)
        return Comm(group) if group else None


def _try_all():
    with Comm() as world:
        n, me = world.size, world.rank
        for name in ("float32", "float64", "int32", "uint8", "float16"):
            x = np.arange(1000).astype(name) % 3 + me % 2
            want = sum((np.arange(1000).astype(name) % 3 + r % 2) for r in range(n)).astype(name)
            assert (world.all_reduce(x, out=np.empty_like(x)) == want).all(), name
        x = np.full((2, 3), me, np.int64)
        assert (world.broadcast(x, root=n - 1) == n - 1).all()
        assert (world.all_gather(np.array([me])).ravel() == np.arange(n)).all()
        part = world.reduce_scatter(np.arange(2.0 * n), np.empty(2))
        assert (part == n * np.array([2 * me, 2 * me + 1])).all()
        swapped = world.all_to_all(np.full(n, me), np.empty(n, int))
        assert (swapped == np.arange(n)).all()
        peak = world.reduce(np.array([float(me)]), op="max")
        assert me or peak[0] == n - 1
        if n > 1:
            there = world.send(np.array([me]), (me + 1) % n, wait=False)
            assert world.recv(np.empty(1, int), (me - 1) % n)[0] == (me - 1) % n
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
        half = world.split(me % 2)
        assert half.all_reduce(np.array([1]))[0] == half.size == (n + 1 - me % 2) // 2
        try:
            half.recv(np.empty(1), half.rank, timeout=0.0001)
            assert False, "nobody has sent it"
        except Error as e:
            assert "timed out" in str(e), e
        half.close(finalize=False)
        world.barrier()
        print(f"rank {me} of {n}: everything is as it should be", flush=True)


if __name__ == "__main__":
    _try_all()
