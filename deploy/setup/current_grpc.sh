#!/bin/bash
# Builds and tests what speaks gRPC against a current gRPC. Debian 12 has 1.51.1, of December 2022, without the fixes since
# (docs/security.md#grpc-and-its-published-faults). This makes a root folder of Debian unstable in DIRECTORY/root, with gRPC, protobuf
# and Abseil of experimental; configures this checkout in it, under DIRECTORY/build; builds the targets and runs those that are tests.
# Nothing else changes, and what comes out runs in that root only.
#   deploy/setup/current_grpc.sh DIRECTORY [TARGET...]
# As root, after deploy/setup/install.sh and `apt-get install mmdebstrap`. Downloads 600 MB the first time. APT_OPTION is passed to apt:
# a mirror that is a snapshot needs APT_OPTION='Acquire::Check-Valid-Until "false"' (signatures are checked all the same).
# For more targets than tests of gRPC a Rust compiler must be put into the root.
set -euo pipefail
TREE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
FROM_EXPERIMENTAL=(libgrpc++-dev libgrpc-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev)
PACKAGES=(
  ca-certificates g++ cmake ninja-build pkg-config git python3 libssl-dev libgtest-dev libgmock-dev libbenchmark-dev libyaml-cpp-dev
  nlohmann-json3-dev libcli11-dev libspdlog-dev prometheus-cpp-dev libcivetweb-dev libxxhash-dev libjs-chart.js libgloo-dev
  libboost-dev
)
TESTS=(
  access_test caller_channel_test caller_secret_test caller_test health_test limits_test rollout_server_test rotation_test
  weight_service_test rollout_client_test server_scorer_test weight_publisher_test
)

say() { echo "current_grpc: $*" >&2; }
[[ $# -ge 1 ]] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $(id -u) -eq 0 ]] || { say "root is needed, to make and enter a root folder"; exit 2; }
command -v mmdebstrap >/dev/null || { say "mmdebstrap is missing: apt-get install mmdebstrap"; exit 2; }
mkdir -p "$1"
WHERE=$(cd "$1" && pwd -P)
shift
[[ $# -gt 0 ]] || set -- "${TESTS[@]}"
ROOT=$WHERE/root
MIRROR=$(apt-cache policy | sed -n 's|.* \(https\{0,1\}://[^ ]*/debian\) .*|\1|p' | head -n 1)
[[ -n $MIRROR ]] || { say "apt knows no mirror of Debian: run apt-get update first"; exit 2; }

# Runs a command line in the root, with the checkout and the build folder where they lie outside too.
# shellcheck disable=SC2016
inside() {
  unshare --mount bash -euc '
    root=$1 tree=$2 build=$3
    mount --make-rprivate /
    mkdir -p "$root$tree" "$root$build" "$build"
    mount --rbind "$tree" "$root$tree"
    mount --bind "$build" "$root$build"
    mount --bind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/tmp"
    exec chroot "$root" bash -euc "cd \"\$1\"; $4" _ "$tree"' _ "$ROOT" "$TREE" "$WHERE/build" "$1"
}

if [[ ! -e $WHERE/.root-is-whole ]]; then
  rm -rf "$ROOT"
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  mmdebstrap --mode=root --variant=apt ${APT_OPTION:+"--aptopt=$APT_OPTION"} \
    --customize-hook="chroot \"\$1\" apt-get install -y --no-install-recommends -t experimental ${FROM_EXPERIMENTAL[*]}" \
    --customize-hook="chroot \"\$1\" apt-get install -y --no-install-recommends ${PACKAGES[*]}" \
    unstable "$ROOT" \
    "deb [signed-by=$keyring] $MIRROR unstable main" "deb [signed-by=$keyring] $MIRROR experimental main"
  touch "$WHERE/.root-is-whole"
fi
say "$(chroot "$ROOT" dpkg-query -W libgrpc++-dev libprotobuf-dev libabsl-dev libssl-dev | tr '\t\n' ' ,')"
inside "cmake -S . -B '$WHERE/build' -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCARGO=\$(command -v cargo || echo /usr/bin/false) >/dev/null && cmake --build '$WHERE/build' --target $*"
failed=()
for target in "$@"; do
  [[ -x $WHERE/build/tests/$target ]] || continue
  inside "'$WHERE/build/tests/$target' --gtest_brief=1" || failed+=("$target")
done
[[ ${#failed[@]} -eq 0 ]] || { say "failed: ${failed[*]}"; exit 1; }
say "all of $* passed"
