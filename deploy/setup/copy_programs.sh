#!/bin/bash
# Copies the programs, the libraries of LibTorch that they need, and the examples, so that they run without this checkout.
# `make install`, the build stage of the image and the wheel use it. Needs patchelf (install.sh --install).
#   deploy/setup/copy_programs.sh BIN PREFIX [--wheel]
#     PREFIX/bin            tandem, rollout_server, trainer, and the library with which a server joins a push group
#     PREFIX/lib/tandem     LibTorch, found from the programs by a relative run path
#     PREFIX/share/tandem   examples, found by `tandem demo`, and the Python package, for rewards in Python
#   --wheel: PREFIX is a Python package, beside which the wheels of LibTorch are installed. Only programs and examples are
#   copied, and the programs find LibTorch in PREFIX/../torch.
set -euo pipefail
if [[ ($# -ne 2 && ($# -ne 3 || $3 != --wheel)) || ! -x $1/tandem ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
BIN=$(realpath "$1")
PREFIX=$(realpath -m "$2")
WHEELS=lib/tandem  # where the folders of the wheels are, below PREFIX
[[ ${3:-} != --wheel ]] || WHEELS=..
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SITE=$(realpath .deps/venv/lib/python3*/site-packages)
PROGRAMS=(tandem rollout_server trainer libtandem_push_member.so)
# Libraries that the CUDA part of LibTorch opens by name when it needs them, which ldd does not see.
OPENED_BY_NAME=(torch/lib/libtorch_cuda_linalg.so torch/lib/libcaffe2_nvrtc.so 'nvidia/cu13/lib/libnvrtc.so.*'
                'nvidia/cu13/lib/libnvrtc-builtins.so.*' 'nvidia/cu13/lib/libcusolver.so.*'
                'nvidia/cudnn/lib/libcudnn*.so.*')

# Prints the run path with the folder of the wheels relative to the program.
installed_run_path() {  # installed_run_path FILE
  patchelf --print-rpath "$1" | tr : '\n' | sed -n "s|^$SITE/|\$ORIGIN/../$WHEELS/|p" | awk '!seen[$0]++' |
    paste -sd :
}

copy_library() {  # copy_library FILE_UNDER_SITE: keeps the relative path, so that the wheels' run paths remain valid
  local target=$PREFIX/lib/tandem/$1
  mkdir -p "$(dirname "$target")"
  cp -L "$SITE/$1" "$target"
}

mkdir -p "$PREFIX/bin" "$PREFIX/share/tandem"
for program in "${PROGRAMS[@]}"; do
  # Copies to another name first, because a running program cannot be overwritten.
  cp "$BIN/$program" "$PREFIX/bin/.$program"
  strip "$PREFIX/bin/.$program"
  # --force-rpath: the run path also applies to the dependencies of the libraries that are found.
  patchelf --force-rpath --set-rpath "$(installed_run_path "$BIN/$program")" "$PREFIX/bin/.$program"
  mv "$PREFIX/bin/.$program" "$PREFIX/bin/$program"
done
cp -r examples "$PREFIX/share/tandem/"
[[ ${3:-} != --wheel ]] || exit 0
needed=$(cd "$BIN" && ldd "${PROGRAMS[@]}" | sed -n 's/^\t.* => \(\/.*\) (0x.*/\1/p' | xargs -d '\n' realpath -s |
  grep "^$SITE/" | sort -u)
while read -r library; do
  copy_library "${library#"$SITE"/}"
done <<<"$needed"
# The table of local symbols alone has 93 MB. Exported names, which stack traces show, are kept.
strip --strip-unneeded "$PREFIX/lib/tandem/torch/lib/libtorch_cpu.so"
if grep -q /libtorch_cuda.so <<<"$needed"; then
  for pattern in "${OPENED_BY_NAME[@]}"; do
    for library in "$SITE"/$pattern; do copy_library "${library#"$SITE"/}"; done
  done
fi
rm -rf "$PREFIX/share/tandem/python"
mkdir -p "$PREFIX/share/tandem/python"
cp -r python/tandem_rl "$PREFIX/share/tandem/python/"
find "$PREFIX/share/tandem/python" -name __pycache__ -prune -exec rm -rf {} +
