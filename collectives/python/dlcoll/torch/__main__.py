"""python -m dlcoll.torch [--build [FOLDER]]: shows or compiles the C++ extension of the backend."""
import argparse
import os
import sys

from dlcoll import _lib
from dlcoll.torch import extension


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dlcoll.torch", description=__doc__)
    parser.add_argument("--build", nargs="?", const="", metavar="FOLDER",
                        help="compile the extension unless it is there, or anew into FOLDER instead of the cache")
    args = parser.parse_args()
    try:
        if args.build is None:
            file = extension.path()
            print(f"extension: {file}{'' if os.path.exists(file) else ' (not compiled yet)'}")
            print(f"library: {_lib.path()}")
            return
        if args.build:
            os.makedirs(args.build, exist_ok=True)
            print(extension.compile_to(os.path.join(os.path.abspath(args.build), extension.file_name())))
        else:
            extension.load()
            print(extension.path())
    except (RuntimeError, OSError) as e:
        sys.exit(f"python -m dlcoll.torch: {e}")


if __name__ == "__main__":
    main()
