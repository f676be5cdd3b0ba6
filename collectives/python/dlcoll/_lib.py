"""libdlcoll through ctypes: the library, its structs, its errors. dlcoll.h describes all of them."""
import ctypes
import os
import site
import sys
from ctypes import c_char, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

IN_PROGRESS = 1
ESTATE, ENOSUP, ETIMEDOUT = -2, -4, -5
PERSISTENT, SYNCHRONOUS = 1, 2
OP_MAY_FAIL = 2
THREAD_MULTIPLE = 1
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4, "band": 32, "bor": 33, "bxor": 34, "land": 35, "lor": 36,
       "lxor": 37, "minloc": 38, "maxloc": 39}


def path() -> str:
    """Where libdlcoll is: $DLCOLL_LIBRARY, a build of the source tree that this package is part of, this Python's prefix
    or the user's, beside this file (pip --target), or the system."""
    here = os.path.dirname(os.path.abspath(__file__))
    source = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    folders = [os.path.join(source, "build")] if os.path.exists(os.path.join(source, "collectives", "dlcoll.h")) else []
    user = site.getusersitepackages()
    folders += [os.path.join(site.getuserbase(), "lib")] if here.startswith(user + os.sep) else []
    places = [os.path.join(f, "libdlcoll.so.0") for f in (*folders, os.path.join(sys.prefix, "lib"), here)]
    named = os.environ.get("DLCOLL_LIBRARY")
    return named or next((p for p in places if os.path.exists(p)), "libdlcoll.so.0")


class ErrorText(ctypes.Structure):
    """struct dlcoll_error."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("code", c_int32), ("rank", c_int32), ("pid", c_int32),
                ("signal", c_int32), ("exit_code", c_int32), ("seq", c_uint64), ("op", c_char * 32),
                ("host", c_char * 256), ("text", c_char * 512)]


class Layout(ctypes.Structure):
    """struct dlcoll_layout."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("unused", c_uint32), ("blocks", c_size_t),
                ("length", c_size_t), ("stride", c_size_t), ("lengths", c_void_p), ("offsets", c_void_p)]


class Options(ctypes.Structure):
    """struct dlcoll_opts."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("tag", c_int32), ("timeout_ms", c_int64),
                ("stream", c_void_p), ("send_layout", ctypes.POINTER(Layout)),
                ("recv_layout", ctypes.POINTER(Layout)), ("flags", c_uint32), ("unused", c_uint32)]


class Graph(ctypes.Structure):
    """struct dlcoll_graph."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("unused", c_uint32), ("sources", c_void_p),
                ("nsources", c_size_t), ("dests", c_void_p), ("ndests", c_size_t)]


class InitOptions(ctypes.Structure):
    """struct dlcoll_init_opts."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("rank", c_int32), ("world_size", c_int32),
                ("backend", c_int32), ("timeout_ms", c_int64), ("init_timeout_ms", c_int64),
                ("init_method", ctypes.c_char_p), ("store", c_void_p), ("name", ctypes.c_char_p), ("flags", c_uint32),
                ("unused", c_uint32)]


class GroupOptions(ctypes.Structure):
    """struct dlcoll_group_opts."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("unused", c_uint32), ("timeout_ms", c_int64),
                ("name", ctypes.c_char_p)]


class Span(ctypes.Structure):
    """struct dlcoll_span."""

    _fields_ = [("send", c_void_p), ("recv", c_void_p), ("count", c_size_t)]


class Bytes(ctypes.Structure):
    """struct dlcoll_bytes."""

    _fields_ = [("data", c_void_p), ("len", c_size_t)]


class MessageInfo(ctypes.Structure):
    """struct dlcoll_message."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("source", c_int32), ("tag", c_int32), ("dtype", c_int32),
                ("count", c_size_t), ("bytes", c_size_t), ("matched", c_void_p)]


class Error(Exception):
    """A call failed. code: DLCOLL_E...; rank: the rank at fault, -1 if unknown; the text is one line."""

    def __init__(self, code: int, rank: int, text: str):
        super().__init__(text)
        self.code, self.rank = code, rank


def _load():
    loaded = ctypes.CDLL(path())
    loaded.dlcoll_strerror.restype = ctypes.c_char_p
    loaded.dlcoll_version.restype = ctypes.c_char_p
    loaded.dlcoll_mem_alloc.restype = c_void_p
    for name in ("destroy", "work_free", "work_drop", "bytes_free", "mem_free", "store_close"):
        getattr(loaded, "dlcoll_" + name).restype = None
    return loaded


lib = _load()


def error_text(code: int, comm=None) -> ErrorText:
    """The last failure on `comm` (None: of this thread); its text is never empty."""
    e = ErrorText(size=ctypes.sizeof(ErrorText), version=1)
    lib.dlcoll_last_error(comm, ctypes.byref(e))
    if e.code != code:
        e.code, e.rank, e.text = code, -1, lib.dlcoll_strerror(code)
    return e


def check(code: int, comm=None) -> int:
    """`code`, or an Error if it is one."""
    if code >= 0:
        return code
    e = error_text(code, comm)
    raise Error(code, e.rank, e.text.decode(errors="replace"))
