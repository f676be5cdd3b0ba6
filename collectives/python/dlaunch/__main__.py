"""python -m dlaunch: replaces this process by the program dlaunch."""
import os
import shutil
import sys


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    build = os.path.join(here, "..", "..", "..", "build", "dlaunch")
    places = (os.path.join(sys.prefix, "bin", "dlaunch"), build, shutil.which("dlaunch"))
    program = next((p for p in places if p and os.access(p, os.X_OK)), None)
    if program is None:
        sys.exit(f"python -m dlaunch: the program dlaunch is neither in {sys.prefix}/bin nor on PATH")
    os.execv(program, ["dlaunch", *sys.argv[1:]])


if __name__ == "__main__":
    main()
