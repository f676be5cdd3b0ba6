"""Where the program dlaunch and libdlaunch are: this Python's prefix, a build of the source tree, or the system."""
import os
import shutil
import sys
from typing import Optional

BUILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "build")


def program() -> Optional[str]:
    """The path of dlaunch; None: it is neither in this Python's prefix nor on PATH."""
    places = (os.path.join(sys.prefix, "bin", "dlaunch"), os.path.join(BUILD, "dlaunch"), shutil.which("dlaunch"))
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def library() -> str:
    """The path of libdlaunch, or its name for the system's linker."""
    places = (os.path.join(sys.prefix, "lib", "libdlaunch.so.0"), os.path.join(BUILD, "libdlaunch.so.0"))
    return next((p for p in places if os.path.exists(p)), "libdlaunch.so.0")
