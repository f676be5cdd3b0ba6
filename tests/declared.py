#!/usr/bin/python3
"""Each unit declares its own objects: what x.h declares is defined in x.c or, for functions, in an x_....c beside it.
A header without a .c is its folder's. Prints what stands elsewhere, and exits 1 when there is something."""
import os
import re
import subprocess
import sys

# declared for programs, not for units
PUBLIC = {"collectives/dlcoll.h", "launcher/api/dlaunch.h"}
TYPE = r"^(?!static\b|typedef\b|extern\b|#|[\s}])[A-Za-z][\w \*()]*?\b"


def text(path):
    with open(path, encoding="utf-8") as f:
        s = f.read()
    s = re.sub(r"/\*.*?\*/", "", s, flags=re.S)
    return re.sub(r"^[ \t]*#.*?(?<!\\)$", "", s, flags=re.M | re.S)


def family(unit, other):
    return other == unit or other.startswith(unit + "_")


def misplaced(header, unit, name, kind, defined):
    folder = os.path.dirname(header)
    for source in defined.get((kind, name), ()):
        at = source[:-2]
        if os.path.exists(unit + ".c"):
            here = family(unit, at) if kind == "function" else at == unit
        else:
            here = os.path.dirname(source) == folder
        if here:
            return None
    sources = sorted(defined.get((kind, name), ()))
    # several: each program has its own
    return f"{header} declares {name}, which {sources[0]} defines" if len(sources) == 1 else None


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *(f"{d}/*.[ch]" for d in
                            ("core", "rendezvous", "agent", "launcher", "collectives"))],
                           capture_output=True, text=True, check=True).stdout.split()
    files = [f for f in files if os.path.exists(f) and not f.startswith("collectives/python/")]
    defined = {}
    for f in (f for f in files if f.endswith(".c")):
        s = text(f)
        for m in re.finditer(TYPE + r"(\w+)\([^;{}]*\)\s*\n\{", s, re.M):
            defined.setdefault(("function", m.group(1)), set()).add(f)
        for m in re.finditer(TYPE + r"(\w+)(\[[^\]]*\])*( = |;)", s, re.M):
            defined.setdefault(("object", m.group(1)), set()).add(f)
    wrong = []
    for h in (f for f in files if f.endswith(".h") and f not in PUBLIC):
        s = text(h)
        names = [("function", m.group(1)) for m in re.finditer(TYPE + r"(\w+)\([^;{}]*\)[^;{}]*;", s, re.M)]
        for m in re.finditer(r"^extern (?!\")([^;{}]*);", s, re.M):
            names += [("object", n) for n in re.findall(r"(\w+)(?:\[[^\]]*\])*(?:,|$)", m.group(1))]
        wrong += filter(None, (misplaced(h, h[:-2], name, kind, defined) for kind, name in names))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


sys.exit(main())
