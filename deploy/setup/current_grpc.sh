#!/bin/bash
# Builds and tests the programs with a current gRPC. Debian 12 has 1.51.1 of December 2022, without later fixes
# (docs/security.md#grpc-and-its-published-faults). It makes, in DIRECTORY:
#   root    Debian unstable with the gRPC and protobuf of experimental: compiler, headers, libraries
#   build   this checkout, compiled in that root; programs in build/bin, tests in build/tests
#   logs    the output of each test
# Programs have the paths of the libraries in the root, so they run on this machine as long as DIRECTORY is not moved.
#   deploy/setup/current_grpc.sh DIRECTORY [TARGET | TEST.py]...
#     TARGET    a CMake target, which is built and, if it is a test, run
#     TEST.py   a Python test of tests/, which is run with the programs built here
#     Default: the programs, the C++ tests that use gRPC, and the end-to-end tests
# As root, after deploy/setup/install.sh --tests and `apt-get install mmdebstrap`. Another run continues where the last one ended.
# Downloads 400 MB and takes 2 GB. CMAKE_BUILD_PARALLEL_LEVEL is the number of compilers that run at once. APT_OPTION is passed
# to apt: a mirror that is a snapshot needs APT_OPTION='Acquire::Check-Valid-Until "false"' (signatures are still checked).
# Exit codes: 0 everything was built and passed, 1 a test failed, 2 a program is missing here, 3 the root or the build failed.
set -euo pipefail
TREE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
# With their dependencies, except libraries of which experimental has newer versions than this gRPC was compiled with.
FROM_EXPERIMENTAL=(libgrpc++-dev libgrpc-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler)
AS_GRPC_HAS_THEM=(libabsl-dev libssl-dev)
PACKAGES=(
  ca-certificates g++ cmake ninja-build pkg-config git python3 libgtest-dev libgmock-dev libbenchmark-dev
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev prometheus-cpp-dev libcivetweb-dev libxxhash-dev libjs-chart.js
  libgloo-dev libboost-dev libcurl4-openssl-dev libsqlite3-dev
)
PROGRAMS=(rollout_server trainer tandem)
TESTS=(
  common_tests rollout_server_tests trainer_tests trainer_loop_tests end_to_end_tests
)
PAIR_TESTS=(
  tests/end_to_end/pair/pair_test.py tests/end_to_end/pair/push_test.py tests/end_to_end/faults/security_test.py
  tests/end_to_end/pair/python_client_test.py tests/end_to_end/faults/faults_test.py
)
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
PYTHON=$TREE/.deps/venv/bin/python

say() { echo "current_grpc: $*" >&2; }
stop() { say "${@:2}"; exit "$1"; }

# Runs a command line in the root. The checkout, the build folder and the root have the same paths there as outside.
# shellcheck disable=SC2016
inside() {
  unshare --mount bash -euc '
    root=$1 tree=$2 build=$3
    mount --make-rprivate /
    mkdir -p "$root$tree" "$root$build" "$root$root"
    mount --rbind "$tree" "$root$tree"
    mount --bind "$build" "$root$build"
    mount --bind "$root" "$root$root"
    mount --bind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/tmp"
    exec chroot "$root" bash -euc "cd \"\$1\"; $4" _ "$tree"' _ "$ROOT" "$TREE" "$BUILD" "$1"
}

check_machine() {
  [[ $(id -u) -eq 0 ]] || stop 2 "root is needed, to make and enter a root folder"
  command -v mmdebstrap >/dev/null || stop 2 "mmdebstrap is missing: apt-get install mmdebstrap"
  "$PYTHON" -c 'import pytest, torch' 2>/dev/null ||
    stop 2 "LibTorch and pytest are missing under $TREE/.deps/venv: run deploy/setup/install.sh --tests first"
  MIRROR=$(apt-cache policy | sed -n 's|.* \(https\{0,1\}://[^ ]*/debian\) .*|\1|p' | head -n 1)
  [[ -n $MIRROR ]] || stop 2 "apt knows no mirror of Debian: run apt-get update first"
}

# A folder of this script has a stamp: "unfinished", or the packages of its root.
claim_directory() {  # claim_directory DIRECTORY
  mkdir -p "$1"
  WHERE=$(cd "$1" && pwd -P)
  ROOT=$WHERE/root BUILD=$WHERE/build LOGS=$WHERE/logs STAMP=$WHERE/root.stamp
  if [[ ! -e $STAMP ]]; then
    [[ ! -e $ROOT && ! -e $BUILD ]] || stop 2 "$WHERE holds a root or build that this script did not make: name an empty directory"
    echo unfinished >"$STAMP"
  fi
  exec 8<"$STAMP"
  flock --nonblock 8 || stop 2 "another run is at work in $WHERE"
}

make_root() {
  local wanted="unstable ${PACKAGES[*]} ${AS_GRPC_HAS_THEM[*]} experimental ${FROM_EXPERIMENTAL[*]}" unlike
  local install="apt-get install -y --no-install-recommends"
  if [[ $(<"$STAMP") != "$wanted" ]]; then
    say "making $ROOT of Debian unstable from $MIRROR"
    echo unfinished >"$STAMP"
    # What was compiled in an earlier root is deleted with it, because the dates of packaged headers do not show changes.
    rm -rf "$ROOT" "$BUILD"
    mmdebstrap --mode=root --variant=apt ${APT_OPTION:+"--aptopt=$APT_OPTION"} \
      --customize-hook="chroot \"\$1\" $install -t experimental ${FROM_EXPERIMENTAL[*]} ${AS_GRPC_HAS_THEM[*]/%//unstable}" \
      --customize-hook="chroot \"\$1\" $install ${PACKAGES[*]}" \
      unstable "$ROOT" "deb [signed-by=$KEYRING] $MIRROR unstable main" "deb [signed-by=$KEYRING] $MIRROR experimental main" ||
      stop 3 "the root was not made: see apt's message above. A mirror that is a snapshot needs" \
        "APT_OPTION='Acquire::Check-Valid-Until \"false\"'; run this again, it begins with the root"
    mkdir -p "$BUILD"
    # shellcheck disable=SC2016
    unlike=$(inside 'for name in libabsl_status libcrypto; do
      compiled_with=$(readelf -d /usr/lib/*/libgrpc.so | sed -n "s/.*NEEDED.*\[\($name[.]so[.].*\)\]/\1/p")
      headers_of=$(readelf -d /usr/lib/*/$name.so | sed -n "s/.*SONAME.*\[\(.*\)\]/\1/p")
      [[ $compiled_with == "$headers_of" ]] || echo "$compiled_with, and the headers are of $headers_of;"
    done')
    [[ -z $unlike ]] || stop 3 "gRPC there was compiled with $unlike one program would hold both. Debian is between two" \
      "versions: use a mirror of another day"
    echo "$wanted" >"$STAMP"
  fi
  say "$(inside 'dpkg-query -W libgrpc++-dev libprotobuf-dev libabsl-dev libssl-dev g++' | tr '\t\n' ' ,')"
}

# The tokenizer crate does not depend on gRPC. Its library is built outside, as in the checkout's own build
# (cmake/rust.cmake), and found by the build inside, which needs no Rust then.
make_tokenizer() {
  local cargo candidate
  for candidate in "$TREE/.deps/cargo/bin/cargo" cargo "${HOME:-/root}/.cargo/bin/cargo"; do
    cargo=$(command -v "$candidate") && break
  done
  [[ -n ${cargo:-} ]] || stop 2 "no cargo: run deploy/setup/install.sh --tests first"
  CARGO_TARGET_DIR=$TREE/build/rust "$cargo" build --release --locked --quiet \
    --manifest-path "$TREE/common/tokenizer/ffi/Cargo.toml" || stop 3 "the tokenizer crate does not build"
}

build() {  # build TARGET...
  local libraries flags
  libraries=$(inside 'dirname /usr/lib/*/libgrpc++.so')
  # Old dynamic tags (RPATH), which also apply to the dependencies of the libraries that are found.
  flags="-Wl,--disable-new-dtags,-rpath,$ROOT$libraries,--dynamic-linker=$(echo "$ROOT$libraries"/ld-linux*.so.*)"
  inside "cmake -S . -B '$BUILD' -G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=Release -DCARGO=/usr/bin/true \
    -DCMAKE_EXE_LINKER_FLAGS='$flags' -DCMAKE_SHARED_LINKER_FLAGS='$flags' -DCMAKE_MODULE_LINKER_FLAGS='$flags' >/dev/null" || stop 3 "the configuration failed"
  [[ $# -eq 0 ]] || inside "cmake --build '$BUILD' --target $*" || stop 3 "the build failed: run this again to go on from there"
}

run_test() {  # run_test NAME COMMAND...: prints one line; the output goes to the log
  local name=$1 log=$LOGS/${1##*/}.log counts code=0
  shift
  "$@" >"$log" 2>&1 </dev/null || code=$?
  counts=$(sed -n 's/.*PASSED  \] \([0-9]*\) tests\{0,1\}\.$/\1/p; s/^\([0-9]*\) passed.*/\1/p' "$log" | tail -n 1)
  if [[ $code -eq 0 ]]; then
    passed=$((passed + ${counts:-0}))
    say "$name: ${counts:-0} tests passed"
  else
    failed+=("$name")
    tail -n 30 "$log" >&2
    say "$name: failed (exit code $code), $log"
  fi
}

[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
check_machine
claim_directory "$1"
shift
[[ $# -gt 0 ]] || set -- "${PROGRAMS[@]}" "${TESTS[@]}" "${PAIR_TESTS[@]}"
targets=() scripts=() failed=() passed=0
for name in "$@"; do
  if [[ $name != *.py ]]; then
    targets+=("$name")
  elif [[ -e $TREE/$name ]]; then
    scripts+=("$name")
  else
    stop 2 "$name is no file of $TREE"
  fi
done
make_tokenizer
make_root
build "${targets[@]}"

mkdir -p "$LOGS"
# As tandem_tests and tandem_python_test of cmake/tandem_targets.cmake run tests.
export OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 PYTHONDONTWRITEBYTECODE=1
export TANDEM_SOURCE=$TREE TANDEM_BIN=$BUILD/bin TANDEM_TESTS=$BUILD/tests
cd "$TREE"
for name in "${targets[@]}"; do
  # The build folder also has folders with these names.
  [[ ! -f $BUILD/tests/$name ]] || run_test "$name" "$BUILD/tests/$name" --gtest_brief=1
done
for name in "${scripts[@]}"; do
  run_test "$name" "$PYTHON" -m pytest -q -p no:cacheprovider "$name"
done
[[ ${#failed[@]} -eq 0 ]] || stop 1 "$passed tests passed; failed: ${failed[*]}"
say "all is built; $passed tests passed"
