"""python -m dlcoll.torch [--build [FOLDER]]: shows or builds the C++ extension of the backend."""
import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import torch

import dlcoll.torch
from dlcoll import _lib


def build(folder: str) -> str:
    """Compiles process_group.cc for this Python and this PyTorch into `folder` ("": the cache). Its path."""
    here = os.path.dirname(os.path.abspath(__file__))
    target = dlcoll.torch._extension_path()
    if folder:
        target = os.path.join(folder, os.path.basename(target))
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        sys.exit(f"python -m dlcoll.torch: the C++ compiler {compiler} is missing (CXX names another one)")
    python_h = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(python_h, "Python.h")):
        sys.exit(f"python -m dlcoll.torch: {python_h}/Python.h is missing: install Python's development files")
    headers = [here, os.path.join(sys.prefix, "include"), os.path.join(here, "..", "..", "..")]
    include = next((p for p in headers if os.path.exists(os.path.join(p, "dlcoll.h"))), None)
    if include is None:
        sys.exit(f"python -m dlcoll.torch: dlcoll.h is missing in {' and '.join(headers[:2])}")
    root = os.path.dirname(os.path.abspath(torch.__file__))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as scratch:
        made = os.path.join(scratch, "made.so")
        subprocess.run([compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-Wall",
                        "-DTORCH_EXTENSION_NAME=_process_group",
                        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
                        "-isystem", f"{root}/include", "-isystem", f"{root}/include/torch/csrc/api/include",
                        "-isystem", python_h, f"-I{include}", os.path.join(here, "process_group.cc"), "-o", made,
                        f"-L{root}/lib", "-ltorch_python", "-ltorch_cpu", "-lc10", os.path.realpath(_lib.path())],
                       check=True)
        os.replace(made, target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dlcoll.torch", description=__doc__)
    parser.add_argument("--build", nargs="?", const="", metavar="FOLDER",
                        help="compile the extension, into FOLDER instead of the cache")
    args = parser.parse_args()
    if args.build is None:
        print(f"implementation: {dlcoll.torch.implementation()}")
        print(f"extension: {dlcoll.torch._extension_path()}")
        print(f"library: {_lib.path()}")
    else:
        try:
            print(build(args.build))
        except subprocess.CalledProcessError as e:
            sys.exit(f"python -m dlcoll.torch: the compiler ended with status {e.returncode}")


if __name__ == "__main__":
    main()
