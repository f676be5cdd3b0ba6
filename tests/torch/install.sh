#!/bin/sh
# Sets up the PyTorch of the package index in a virtual environment, without the 3 GB of GPU libraries
# that it names as dependencies (gpu_stubs.py); then what reads a launcher's environment and installs.
#   install.sh FOLDER
# TORCH_VERSION says which PyTorch (the newest). Does nothing when it is there already. Says why in one line,
# and exits with 1, when it cannot be had.
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

# Only what was made here is removed: TORCH_VENV may be somebody's own.
if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ -z "$(find "$venv" -maxdepth 1 -name '.dlaunch*')" ]; then
    echo "$venv has something in it that is not from here: it is left alone (TORCH_VENV says another place)"
    exit 1
fi
echo "Installing PyTorch${version:+ $version}, 1.3 GB, into $venv (TORCH_VENV says where)"
{ rm -rf "$venv" && mkdir -p "$venv" && touch "$venv/.dlaunch"; } 2>/dev/null || { echo "$venv cannot be made"; exit 1; }
trap 'fail "interrupted"' INT TERM
/usr/bin/python3 -m venv "$venv" >>"$log" 2>&1 || fail "no virtual environment can be made"
pip "torch${version:+==$version}" numpy filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec setuptools ||
    fail "the package index does not give PyTorch"
"$venv/bin/python" "$here/gpu_stubs.py" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    >>"$log" 2>&1 || fail "no stand-ins for the GPU libraries could be made"
"$venv/bin/python" -c 'import torch.distributed as d; assert d.is_gloo_available()' >>"$log" 2>&1 ||
    fail "PyTorch is installed but cannot be imported"
# What reads a launcher's environment; test_detection.py says what is missing, and is content.
pip accelerate psutil pyyaml packaging huggingface-hub safetensors tqdm click hf-xet httpx2 httpcore2 \
    truststore h11 anyio sniffio idna || echo "accelerate is not to be had"
pip transformers regex tokenizers || echo "transformers is not to be had"
pip lightning-fabric pytorch-lightning lightning-utilities torchmetrics || echo "Lightning is not to be had"
"$venv/bin/python" -c 'import torch; print(torch.__version__.split("+")[0])' >"$mark"
