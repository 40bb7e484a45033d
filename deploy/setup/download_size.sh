#!/bin/bash
# Prints how many bytes the set-up of `make demo` downloads on a machine without any packages. It asks the package sources,
# and downloads only the crates (about 20 MB, which are deleted).
#   deploy/setup/download_size.sh
# The sum is more than a real machine needs, because that has some system packages. Package lists (apt-get update) are not
# included.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C.UTF-8

# The packages of install.sh, and the Rust of Debian.
system_packages() {
  bash -c "$(sed -n '/^PACKAGES=(/,/^)/p' deploy/setup/install.sh)"'; printf "%s\n" "${PACKAGES[@]}"'
  apt-cache show cargo-web >/dev/null 2>&1 && printf 'cargo-web\nrustc-web\n' || printf 'cargo\n'
}

apt_bytes() {
  system_packages | xargs apt-get -o Dir::State::status=/dev/null --print-uris -y --no-install-recommends install |
    awk "/^'/ { sum += \$3 } END { print sum }"
}

# The size of wheels without their dependencies, with the arguments of install.sh.
wheel_bytes() {  # wheel_bytes PIP_ARGUMENT...
  "${PYTHON:-.deps/venv/bin/python}" -m pip install --quiet --disable-pip-version-check --no-input --dry-run \
    --ignore-installed --no-deps --report - "$@" |
    "${PYTHON:-.deps/venv/bin/python}" -c '
import json, sys, urllib.request
total = 0
for one in json.load(sys.stdin)["install"]:
    head = urllib.request.Request(one["download_info"]["url"], method="HEAD")
    with urllib.request.urlopen(head, timeout=60) as answer:
        total += int(answer.headers["Content-Length"])
print(total)'
}

crate_bytes() {
  local home
  home=$(mktemp -d)
  if [[ -f ${CARGO_HOME:-$HOME/.cargo}/config.toml ]]; then
    cp "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$home/"
  fi
  CARGO_HOME=$home PATH=$PATH:$PWD/.deps/cargo/bin cargo fetch --quiet --locked \
    --manifest-path common/tokenizer/ffi/Cargo.toml
  du -cb "$home"/registry/cache/*/*.crate | tail -n 1 | cut -f1
  rm -rf "$home"
}

total=0
count() {  # count WHAT BYTES
  printf '%-55s %14d\n' "$1" "$2"
  total=$((total + $2))
}
model=$(sed -n 's/^PACKAGE = "\(.*\)"/\1/p' python/tandem_rl/demo_model.py)
count "system packages" "$(apt_bytes)"
count "LibTorch (requirements-programs.txt)" "$(wheel_bytes -r deploy/setup/requirements-programs.txt)"
count "converting the model (requirements-model.txt)" "$(wheel_bytes -r deploy/setup/requirements-model.txt)"
count "the model ($model)" "$(wheel_bytes "$model")"
count "Rust crates" "$(crate_bytes)"
count "all" "$total"
