"""Where the program dlaunch and libdlaunch are: a build of the source tree that this package is part of, this Python's
prefix or the user's, beside this package (pip --target), or the system."""
import os
import shutil
import site
import sys
from typing import Iterator, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


def _places(folder: str, name: str, beside: str) -> Iterator[str]:
    if os.path.exists(os.path.join(SOURCE, "launcher", "api", "dlaunch.h")):
        yield os.path.join(SOURCE, "build", name)
    if HERE.startswith(site.getusersitepackages() + os.sep):
        yield os.path.join(site.getuserbase(), folder, name)
    yield os.path.join(sys.prefix, folder, name)
    yield os.path.join(beside, name)


def program() -> Optional[str]:
    """The path of dlaunch; None: it is neither where this package was installed nor on PATH."""
    places = _places("bin", "dlaunch", os.path.join(os.path.dirname(HERE), "bin"))
    return next((p for p in places if os.access(p, os.X_OK)), None) or shutil.which("dlaunch")


def library() -> str:
    """The path of libdlaunch, or its name for the system's linker."""
    return next((p for p in _places("lib", "libdlaunch.so.0", HERE) if os.path.exists(p)), "libdlaunch.so.0")
