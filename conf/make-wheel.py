#!/usr/bin/env python3
"""Packs a build into a wheel: the programs, libdlcoll, headers, manual pages and the Python packages.

    conf/make-wheel.py BUILD OUT

BUILD is the folder of `make`; the wheel is written into the folder OUT, and its path printed. The platform tag is the
newest version of the C library whose symbols the binaries use. Two runs over the same build give the same bytes.
"""
import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = ("dlaunch", "dlaunchctl", "dlaunch-inspect", "dlcoll_perf", "dlcoll_info", "dlcoll_tune")
LIBRARIES = ("libdlaunch", "libdlcoll")
HEADERS = ("launcher/api/dlaunch.h", "collectives/dlcoll.h", "collectives/dlcoll.hpp", "collectives/dlcoll_types.hpp")
MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}


def read(*path):
    with open(os.path.join(ROOT, *path), "rb") as f:
        return f.read()


def platform_tag(files):
    """manylinux_2_N_MACHINE."""
    newest, machine = (2, 17), None
    for file in files:
        symbols = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=True).stdout
        versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)]
        newest = max([newest, *(v[:2] for v in versions)])
        header = subprocess.run(["readelf", "-h", file], capture_output=True, text=True, check=True).stdout
        machine = MACHINES[re.search(r"Machine:\s*(.*)", header).group(1).strip()]
    return "manylinux_%d_%d_%s" % (*newest, machine)


def collect(build, version):
    """{name in the wheel: (bytes, is a program)}."""
    data, files = f"dlaunch-{version}.data", {}
    for program in PROGRAMS:
        files[f"{data}/scripts/{program}"] = (read(build, program), True)
    shared = f"{data}/data"
    for library in LIBRARIES:
        files[f"{shared}/lib/{library}.so.0"] = (read(build, f"{library}.so.0"), True)
        # A wheel cannot hold a link: a linker script leads -ldlcoll to the library.
        files[f"{shared}/lib/{library}.so"] = (f"INPUT({library}.so.0)\n".encode(), False)
        name = library[3:]
        pc = read("conf", f"{name}.pc.in").decode()
        pc = pc.replace("@PREFIX@", "${pcfiledir}/../..").replace("@VERSION@", version)
        files[f"{shared}/lib/pkgconfig/{name}.pc"] = (pc.encode(), False)
    files[f"{shared}/lib/libdlaunch_nccl.so"] = (read(build, "libdlaunch_nccl.so"), True)
    for header in HEADERS:
        files[f"{shared}/include/{os.path.basename(header)}"] = (read(header), False)
    for page in sorted(glob.glob(os.path.join(ROOT, "man", "*.[1-9]"))):
        files[f"{shared}/share/man/man{page[-1]}/{os.path.basename(page)}"] = (read(page), False)
    python = os.path.join(ROOT, "collectives", "python")
    for folder, _, names in sorted(os.walk(python)):
        for name in sorted(names):
            if name.endswith((".py", ".cc", ".h", ".typed")):
                path = os.path.join(folder, name)
                files[os.path.relpath(path, python)] = (read(path), False)
    for library in LIBRARIES:  # `pip install --target` leaves out what belongs into lib
        files[f"{library[3:]}/{library}.so.0"] = (read(build, f"{library}.so.0"), True)
    files["dlcoll/torch/dlcoll.h"] = (read("collectives/dlcoll.h"), False)  # the backend is compiled with it
    return files


def metadata(version):
    return f"""Metadata-Version: 2.1
Name: dlaunch
Version: {version}
Summary: Launcher for distributed jobs, with torchrun's command line, and fast collective operations on CPUs
License: Apache-2.0
License-File: LICENSE
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Programming Language :: Python :: 3
Requires-Python: >=3.8
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: torch
Requires-Dist: torch>=2.9; extra == "torch"
Description-Content-Type: text/markdown

""".encode() + read("README.md")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1].strip())
    build, out = os.path.abspath(sys.argv[1]), sys.argv[2]
    version = read("VERSION").decode().strip()
    binaries = [os.path.join(build, name) for name in (*PROGRAMS, "libdlaunch_nccl.so", *(f"{lib}.so.0" for lib in LIBRARIES))]
    missing = [b for b in binaries if not os.path.exists(b)]
    if missing:
        sys.exit(f"make-wheel: {missing[0]} is missing: type 'make' first")
    tag = "py3-none-" + platform_tag(binaries)
    info = f"dlaunch-{version}.dist-info"
    files = collect(build, version)
    files[f"{info}/METADATA"] = (metadata(version), False)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: make-wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
                              False)
    files[f"{info}/entry_points.txt"] = (b"[torch.distributed.backends]\ndlcoll = dlcoll.torch:register\n", False)
    files[f"{info}/licenses/LICENSE"] = (read("LICENSE"), False)
    record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b'=').decode()},{len(b)}\n"
                     for name, (b, _) in files.items())
    files[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), False)
    os.makedirs(out, exist_ok=True)
    wheel = os.path.join(out, f"dlaunch-{version}-{tag}.whl")
    with zipfile.ZipFile(wheel + ".tmp", "w", zipfile.ZIP_DEFLATED) as z:
        for name, (content, executable) in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, content)
    os.replace(wheel + ".tmp", wheel)
    print(wheel)


main()
