#!/bin/bash
# Runs in the build stage of the Containerfile, in the root of the tree. Compiles the programs and writes what the image
# takes from this stage.
#   deploy/container/compile.sh cpu|cuda OUT
#     OUT/root           files for the root of the runtime stage
#     OUT/packages.txt   Debian packages whose shared libraries (or certificates) the programs need, and Python, one per line
#     OUT/wheels.txt     Python distributions whose shared libraries are in OUT/root, one NAME==VERSION per line
#     OUT/crates.json and OUT/built-in.txt   what is compiled into the programs (linked_parts.sh)
set -euo pipefail
if [[ $# -ne 2 || ($1 != cpu && $1 != cuda) ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
export LANG=C.UTF-8  # a part of ccache's keys
VARIANT=$1
OUT=$2
SITE=$(echo .deps/venv/lib/python3*/site-packages)
PROGRAMS=(tandem rollout_server trainer)
# In the directory of the programs, where a server that joins a push group finds it.
MEMBER=libtandem_push_member.so

compile() {
  local preset=release
  [[ $VARIANT == cuda ]] && preset=cuda
  if [[ -s /run/secrets/ca ]]; then export CARGO_HTTP_CAINFO=/run/secrets/ca; fi
  export CARGO_HOME=/var/cache/rust/home
  mkdir -p "$CARGO_HOME" build /var/cache/rust/target
  if [[ -s /run/secrets/cargo.toml ]]; then cp /run/secrets/cargo.toml "$CARGO_HOME/config.toml"; fi
  ln -sfn /var/cache/rust/target build/rust
  cmake --preset "$preset" -Wno-dev --log-level=WARNING
  TANDEM_GIT_COMMIT=$REVISION cmake --build "build/$preset" --target tandem_binaries -j "${JOBS:-$(nproc)}"
  BIN=build/$preset/bin
  deploy/container/linked_parts.sh "$OUT"
}

collect() {
  local needed library
  deploy/setup/copy_programs.sh "$BIN" "$OUT/root/usr/local"
  needed=$(cd "$BIN" && ldd "${PROGRAMS[@]}" "$MEMBER" | sed -n 's/^\t[^ ]* => \(\/[^ ]*\) .*/\1/p' |
    xargs realpath -s | sort -u)
  # With a merged /usr, a library is found as /lib/..., and dpkg may know it by either path.
  grep -v "^$(realpath "$SITE")/" <<<"$needed" | xargs -I{} realpath {} | xargs -n1 basename | sort -u |
    while read -r library; do dpkg-query -S "*/$library"; done |
    grep -v '^diversion by' |
    sed -n 's/^\([^:,]*\)\(:[a-z0-9]*\)\?: .*/\1/p' | sort -u >"$OUT/packages.txt"
  echo ca-certificates >>"$OUT/packages.txt"  # by which tandem fetch and reward services over HTTPS are verified
  echo python3 >>"$OUT/packages.txt"  # runs reward functions (trainer.reward.python)
}

papers() {
  local doc=$OUT/root/usr/share/doc/tandem folder library
  mkdir -p "$doc"
  cp LICENSE "$doc/"
  : >"$OUT/wheels.txt"
  for folder in "$SITE"/*.dist-info; do
    while read -r library; do
      [[ -e $OUT/root/usr/local/lib/tandem/$library ]] || continue
      sed -n 's/^Name: //p;s/^Version: /==/p' "$folder/METADATA" | head -n 2 | paste -sd '' >>"$OUT/wheels.txt"
      mkdir -p "$doc/$(basename "$folder")"
      find "$folder" -iname '*licen[sc]e*' -type f -exec cp {} "$doc/$(basename "$folder")/" \;
      break
    done < <(cut -d, -f1 "$folder/RECORD" | grep '\.so')
  done
}

rm -rf "$OUT"
mkdir -p "$OUT"
compile
collect
papers
du -sm "$OUT"/root/usr/local/bin "$OUT"/root/usr/local/lib/tandem >&2
