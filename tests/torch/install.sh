#!/bin/sh
# Sets up the PyTorch of the package index in a virtual environment, without the 3 GB of GPU libraries
# that it depends on (gpu_stubs.py); then the packages that read a launcher's environment.
#   install.sh FOLDER
# TORCH_VERSION selects the PyTorch (default: the newest). Does nothing if it is installed already. If it cannot be
# installed, prints the reason in one line and exits with 1.
set -u
venv=$1
here=$(dirname "$0")
mark=$venv/.dlaunch-2 # holds the version
log=$venv/install.log
version=${TORCH_VERSION:-}
[ -e "$mark" ] && [ "${version:-$(cat "$mark")}" = "$(cat "$mark")" ] && exit 0

fail() { echo "$1 (the log: $log)"; rm -rf "${venv:?}/lib" "${venv:?}/bin"; exit 1; }
pip() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --retries 2 --timeout 60 \
        --no-deps "$@" >>"$log" 2>&1
}

# Remove only a folder that this script has made: TORCH_VENV may name another one.
if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ -z "$(find "$venv" -maxdepth 1 -name '.dlaunch*')" ]; then
    echo "$venv is not empty and was not made by this script (set TORCH_VENV to another folder)"
    exit 1
fi
echo "Installing PyTorch${version:+ $version}, 1.3 GB, into $venv (TORCH_VENV selects the folder)"
{ rm -rf "$venv" && mkdir -p "$venv" && touch "$venv/.dlaunch"; } 2>/dev/null || { echo "$venv cannot be created"; exit 1; }
trap 'fail "interrupted"' INT TERM
/usr/bin/python3 -m venv "$venv" >>"$log" 2>&1 || fail "the virtual environment cannot be created"
pip "torch${version:+==$version}" numpy filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec setuptools ||
    fail "PyTorch cannot be installed from the package index"
"$venv/bin/python" "$here/gpu_stubs.py" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    >>"$log" 2>&1 || fail "the stand-ins for the GPU libraries cannot be built"
"$venv/bin/python" -c 'import torch.distributed as d; assert d.is_gloo_available()' >>"$log" 2>&1 ||
    fail "PyTorch is installed but cannot be imported"
# Packages that read a launcher's environment; test_detection.py skips those that are missing.
pip accelerate psutil pyyaml packaging huggingface-hub safetensors tqdm click hf-xet httpx2 httpcore2 \
    truststore h11 anyio sniffio idna || echo "accelerate cannot be installed"
pip py-spy || echo "py-spy cannot be installed"
pip expecttest || echo "expecttest, for PyTorch's own tests, cannot be installed"
pip transformers regex tokenizers || echo "transformers cannot be installed"
pip lightning-fabric pytorch-lightning lightning-utilities torchmetrics || echo "Lightning cannot be installed"
"$venv/bin/python" -c 'import torch; print(torch.__version__.split("+")[0])' >"$mark"
