#!/bin/bash
# Writes what is compiled into the programs, for their SBOM (sbom.py).
#   deploy/container/linked_parts.sh OUT
#     OUT/crates.json    `cargo metadata` of the crates
#     OUT/built-in.txt   Debian packages of headers and page scripts, one NAME=VERSION per line
set -euo pipefail
if [[ $# -ne 1 || $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
OUT=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=$PATH:$PWD/.deps/cargo/bin
cargo metadata --locked --format-version 1 --manifest-path common/tokenizer/ffi/Cargo.toml \
  --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" >"$OUT/crates.json"
dpkg-query -W -f '${source:Package}=${source:Version}\n' libcli11-dev nlohmann-json3-dev libboost-dev libjs-chart.js |
  sort -u >"$OUT/built-in.txt"
