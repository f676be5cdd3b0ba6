"""The C++ extension of the backend: where it is, and how it is compiled when it is first needed.

A compiled extension fits one PyTorch, one Python, one kind of machine and one state of its own sources: the name of its
file has all of these, so that what is found under it fits.
"""
import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading

import torch

from .. import _lib

HERE = os.path.dirname(os.path.abspath(__file__))
MODULE = "_process_group"
_lock = threading.Lock()


class Missing(RuntimeError):
    """What the extension cannot be compiled without."""


def _header() -> str:
    """dlcoll.h: the package's, or the source tree's."""
    places = [HERE, os.path.join(HERE, "..", "..", "..")]
    found = next((p for p in places if os.path.exists(os.path.join(p, "dlcoll.h"))), None)
    if found is None:
        raise Missing(f"{HERE}/dlcoll.h is missing: install the package anew")
    return found


def file_name() -> str:
    """The name of the compiled extension's file."""
    names = sorted(n for n in os.listdir(HERE) if n.endswith((".cc", ".h")) and n != "dlcoll.h")
    digest = hashlib.sha256()
    for path in [*(os.path.join(HERE, n) for n in names), os.path.join(_header(), "dlcoll.h")]:
        with open(path, "rb") as f:
            digest.update(f.read())
    version = _lib.lib.dlcoll_version().decode()
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return f"process_group-dlcoll{version}-{digest.hexdigest()[:12]}-torch{torch.__version__}-{abi}-{platform.machine()}.so"


def path() -> str:
    """Where the extension is, or will be: beside this file, or in the cache."""
    beside = os.path.join(HERE, file_name())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return beside if os.path.exists(beside) else os.path.join(cache, "dlcoll", file_name())


def _command(made: str) -> list:
    compiler = os.environ.get("CXX", "").split() or ["c++"]  # "ccache g++" is a usual value
    if not shutil.which(compiler[0]):
        raise Missing(f"the C++ compiler {compiler[0]} is missing: install g++, or name a compiler with CXX")
    python_h = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(python_h, "Python.h")):
        raise Missing(f"{python_h}/Python.h is missing: install Python's development files (Debian: python3-dev)")
    library = _lib.path()
    root = os.path.dirname(os.path.abspath(torch.__file__))
    return [*compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-Wall", f"-DTORCH_EXTENSION_NAME={MODULE}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            "-isystem", f"{root}/include", "-isystem", f"{root}/include/torch/csrc/api/include",
            "-isystem", python_h, f"-I{_header()}", *os.environ.get("DLCOLL_TORCH_CXXFLAGS", "").split(),
            os.path.join(HERE, "process_group.cc"), "-o", made,
            f"-L{root}/lib", "-ltorch_python", "-ltorch_cpu", "-lc10",
            os.path.realpath(library) if os.sep in library else f"-l:{library}"]


def compile_to(target: str) -> str:
    """Compiles the extension into that file, which appears when it is whole. `target`."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as scratch:
        made = os.path.join(scratch, "made.so")
        done = subprocess.run(_command(made), capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"the compiler ended with status {done.returncode}:\n{done.stderr.strip()}")
        os.replace(made, target)
    return target


def _import(file: str):
    spec = importlib.util.spec_from_file_location(MODULE, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_whole(file: str) -> bool:
    """Whether a shared object is there to its end, which is its table of sections: the loader dies of one that is not."""
    try:
        with open(file, "rb") as f:
            head = f.read(64)
            size = os.fstat(f.fileno()).st_size
    except OSError:
        return False
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return False
    offset, = struct.unpack_from("=Q", head, 40)
    entry, entries = struct.unpack_from("=HH", head, 58)
    return offset + entry * entries <= size


def _try_import(file: str):
    """None: it is not there, or does not fit."""
    try:
        return _import(file) if _is_whole(file) else None
    except ImportError:
        return None  # a library that it was linked with has changed


def _compile_once(file: str):
    """Of the processes that need the extension at the same time, one compiles it."""
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        lock = open(file + ".lock", "w")
    except OSError as e:
        raise Missing(f"{os.path.dirname(file)} cannot be written to ({e.strerror}): XDG_CACHE_HOME selects another "
                      "folder") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        module = _try_import(file)  # another process has compiled it meanwhile
        if module is None:
            _command(file)  # says what is missing, if anything is
            print(f"dlcoll: compiling the backend for PyTorch {torch.__version__} into {file}, once; it takes about a "
                  "minute", file=sys.stderr, flush=True)
            module = _import(compile_to(file))
    return module


def load():
    """The extension's module. RuntimeError with one line that says what to do."""
    file = path()
    with _lock:
        module = _try_import(file)
        if module is None:
            try:
                module = _compile_once(file)
            except (Missing, OSError, ImportError) as e:
                raise RuntimeError(
                    f"dlcoll: the backend has not been compiled for PyTorch {torch.__version__} and this Python, and "
                    f"cannot be: {e} (or copy {os.path.basename(file)} from a host that has it, into "
                    f"{os.path.dirname(file)}; the backend gloo needs no compiler)") from None
    return module
