"""python -m dlaunch: replaces this process by the program dlaunch."""
import os
import sys

from ._find import program


def main() -> None:
    path = program()
    if path is None:
        sys.exit(f"python -m dlaunch: the program dlaunch is neither in {sys.prefix}/bin nor on PATH")
    os.execv(path, ["dlaunch", *sys.argv[1:]])


if __name__ == "__main__":
    main()
