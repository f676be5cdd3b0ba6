#!/usr/bin/env python3
"""Stand-ins for the GPU libraries that a PyTorch from the package index asks the loader for.

    gpu_stubs.py SITE_PACKAGES

On a host without a GPU none of their functions is of use, but the loader wants the files: 3 GB of them.
For each library that is missing, a shared object of that name, with the symbols (and their versions) that
PyTorch's libraries want of it, is put beside them. Every function answers "no device is there".
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
OURS_TO_STAND_IN = re.compile(r"^lib(cu|nv|nccl)")
SYSTEM_VERSION = re.compile(r"^(GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OMP|OACC|LIBGFORTRAN)")


def output(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def needed(lib):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", lib))


def versions_wanted(lib):
    """soname -> versions that the loader will look for in it"""
    wanted, soname = {}, None
    for line in output("readelf", "-VW", lib).splitlines():
        file, name = re.search(r"File: (\S+)", line), re.search(r" Name: (\S+)", line)
        if file:
            soname = file.group(1)
        elif name and soname:
            wanted.setdefault(soname, set()).add(name.group(1))
    return wanted


def symbols(lib, which):
    """(name, version or "") of the symbols that a library needs (-u) or defines (--defined-only)"""
    for line in output("nm", "-D", which, "--with-symbol-versions", lib).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def main():
    where = os.path.join(sys.argv[1], "torch/lib")
    libs = [lib for lib in glob.glob(where + "/*.so*") if not os.path.islink(lib)]
    there = {os.path.basename(lib) for lib in libs}
    missing = sorted({n for lib in libs for n in needed(lib) if OURS_TO_STAND_IN.match(n) and n not in there})
    versions, wanted, had = {}, set(), set()
    for lib in libs:
        wanted.update(symbols(lib, "-u"))
        had.update(name for name, _ in symbols(lib, "--defined-only"))
        for soname, names in versions_wanted(lib).items():
            versions.setdefault(soname, set()).update(names)
    loose = sorted(n for n, v in wanted if not v and n not in had and re.match(r"^_*(cu|nv|nccl|Cu)", n, re.I))
    for i, soname in enumerate(missing):
        by_version = {v: sorted(n for n, w in wanted if w == v) for v in versions.get(soname, ())
                      if not SYSTEM_VERSION.match(v)}
        names = sorted({n for group in by_version.values() for n in group} | set([] if i else loose))
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/stand_in.c", "w") as f:
                f.writelines(f"long {n}(void) {{ return {NO_DEVICE}; }}\n" for n in names)
            with open(folder + "/stand_in.map", "w") as f:
                f.writelines("%s { global: %s };\n" % (v, " ".join(n + ";" for n in group) or "none;")
                             for v, group in by_version.items())
            script = ["-Wl,--version-script=" + folder + "/stand_in.map"] if by_version else []
            subprocess.run([os.environ.get("CC", "gcc").split()[-1], "-w", "-O1", "-shared", "-fPIC", "-fno-builtin", *script,
                            "-Wl,-soname," + soname, "-o", f"{where}/{soname}", folder + "/stand_in.c"], check=True)
    print(f"stand-ins for {len(missing)} GPU libraries: {' '.join(missing)}")


main()
