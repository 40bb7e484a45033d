#!/bin/bash
# Runs in the build stage of the Containerfile, in the tree's root: compiles the programs and lays out what
# the image takes from this stage.
#   deploy/container/compile.sh cpu|cuda OUT
#     OUT/root           to be copied over the runtime stage's root
#     OUT/packages.txt   Debian packages whose shared libraries the programs name, one a line
#     OUT/wheels.txt     Python distributions whose shared libraries are in OUT/root, NAME==VERSION a line
#     OUT/crates.json    what cargo says of the crates that are compiled into the programs
#     OUT/built-in.txt   Debian packages compiled into the programs, NAME=VERSION a line
set -euo pipefail
export LANG=C.UTF-8  # ccache keys on it
VARIANT=$1
OUT=$2
SITE=$(echo .deps/venv/lib/python3*/site-packages)
PROGRAMS=(tandem rollout_server trainer)
# Beside the programs, found by the server that joins a push group.
MEMBER=libtandem_push_member.so
# Headers and page scripts that end up inside the programs.
BUILT_IN=(libcli11-dev nlohmann-json3-dev libboost-dev libjs-chart.js)
# What LibTorch's CUDA half opens by name when it is first needed, which ldd does not see.
OPENED_BY_NAME=(torch/lib/libtorch_cuda_linalg.so torch/lib/libcaffe2_nvrtc.so 'nvidia/cu13/lib/libnvrtc.so.*'
                'nvidia/cu13/lib/libnvrtc-builtins.so.*' 'nvidia/cu13/lib/libcusolver.so.*'
                'nvidia/cudnn/lib/libcudnn*.so.*')

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
  PATH=$PATH:$PWD/.deps/cargo/bin
  cargo metadata --locked --format-version 1 --manifest-path common/tokenizer/ffi/Cargo.toml \
    --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" >"$OUT/crates.json"
}

# The same run path with the wheels' folder named relative to the program.
installed_run_path() {  # installed_run_path FILE
  local top
  top=$(realpath "$SITE")
  patchelf --print-rpath "$1" | tr : '\n' | sed -n "s|^$top/|\$ORIGIN/../lib/tandem/|p" | awk '!seen[$0]++' |
    paste -sd :
}

copy_library() {  # copy_library FILE_UNDER_SITE: keeps its place, so that the wheels' own run paths hold
  local target=$OUT/root/usr/local/lib/tandem/$1
  mkdir -p "$(dirname "$target")"
  cp -L "$SITE/$1" "$target"
}

collect() {
  local bin=$OUT/root/usr/local/bin program needed library pattern
  mkdir -p "$bin"
  for program in "${PROGRAMS[@]}" "$MEMBER"; do
    cp "$BIN/$program" "$bin/"
    strip "$bin/$program"
    # --force-rpath: a run path that also holds for what the libraries found by it need.
    patchelf --force-rpath --set-rpath "$(installed_run_path "$BIN/$program")" "$bin/$program"
  done
  needed=$(cd "$BIN" && ldd "${PROGRAMS[@]}" "$MEMBER" | sed -n 's/^\t[^ ]* => \(\/[^ ]*\) .*/\1/p' |
    xargs realpath -s | sort -u)
  while read -r library; do
    copy_library "${library#"$(realpath "$SITE")"/}"
  done < <(grep "^$(realpath "$SITE")/" <<<"$needed")
  # Its table of local symbols alone is 93 MB; names that are exported, and those of stack traces, stay.
  strip --strip-unneeded "$OUT/root/usr/local/lib/tandem/torch/lib/libtorch_cpu.so"
  if [[ $VARIANT == cuda ]]; then
    for pattern in "${OPENED_BY_NAME[@]}"; do
      for library in "$SITE"/$pattern; do copy_library "${library#"$SITE"/}"; done
    done
  fi
  # With a merged /usr a library is found as /lib/... and known to dpkg by either name.
  grep -v "^$(realpath "$SITE")/" <<<"$needed" | xargs -I{} realpath {} | xargs -n1 basename | sort -u |
    while read -r library; do dpkg-query -S "*/$library"; done |
    grep -v '^diversion by' |
    sed -n 's/^\([^:,]*\)\(:[a-z0-9]*\)\?: .*/\1/p' | sort -u >"$OUT/packages.txt"
  dpkg-query -W -f '${source:Package}=${source:Version}\n' "${BUILT_IN[@]}" | sort -u >"$OUT/built-in.txt"
}

papers() {
  local share=$OUT/root/usr/local/share/tandem doc=$OUT/root/usr/share/doc/tandem folder library
  mkdir -p "$share" "$doc"
  cp -r examples "$share/"
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
