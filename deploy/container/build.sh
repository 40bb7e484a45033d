#!/bin/bash
# Builds the image of deploy/container/Containerfile with the first of buildah, podman and docker that is installed (or with
# BUILDER="COMMAND ARGS"), and prints its size and how to run it.
#   deploy/container/build.sh [cpu|cuda] [OPTION...]
#     --tag NAME        default: tandem:VERSION-VARIANT
#     --base IMAGE      base of both stages instead of the pinned Debian 12; apt uses its package sources
#     --ca FILE         certificates that pip and cargo trust
#     --pip FILE        a pip.conf     --cargo FILE   a cargo config.toml
#     --source-url URL  for the label org.opencontainers.image.source
#     --archive FILE    also writes the image into a file, in the layout of OCI: podman or docker load -i FILE
#     -- ARGS           further arguments of the builder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

say() { echo "image: $*" >&2; }
stop() { say "$*"; exit 2; }

find_builder() {
  local candidate
  if [[ -n ${BUILDER:-} ]]; then
    read -r -a builder <<<"$BUILDER"
    return
  fi
  for candidate in buildah podman docker; do
    if command -v "$candidate" >/dev/null && "$candidate" info >/dev/null 2>&1; then
      builder=("$candidate")
      return
    fi
  done
  stop "neither buildah, podman nor a docker with its daemon is here: deploy/setup/install.sh --container"
}

variant=cpu
if [[ ${1:-} == cpu || ${1:-} == cuda ]]; then
  variant=$1
  shift
fi
version=$(sed -n 's/^project(tandem VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
revision=$(git describe --always --dirty=+ --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)
tag=tandem:$version-$variant
archive=
args=(--build-arg "VARIANT=$variant" --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
while [[ $# -gt 0 ]]; do
  case $1 in
    --tag) tag=${2:?}; shift 2 ;;
    --base) args+=(--build-arg "BUILD_BASE=${2:?}" --build-arg "RUNTIME_BASE=$2"); shift 2 ;;
    --ca | --pip | --cargo) args+=(--secret "id=${1#--},src=${2:?}"); shift 2 ;;
    --archive) archive=${2:?}; shift 2 ;;
    --source-url) args+=(--build-arg "SOURCE_URL=${2:?}"); shift 2 ;;
    --) shift; args+=("$@"); break ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
find_builder
case ${builder[0]##*/} in
  buildah | podman)
    args+=(--layers)
    # Without a container runtime (in a sandbox or a CI job), the steps run with chroot.
    command -v crun >/dev/null || command -v runc >/dev/null || args+=(--isolation chroot)
    ;;
esac
say "building $tag of $revision with ${builder[*]}"
"${builder[@]}" build "${args[@]}" -f deploy/container/Containerfile -t "$tag" .
say "$tag: $("${builder[@]}" images --format '{{.Size}}' "$tag" | head -n 1)"
if [[ -n $archive ]]; then
  rm -f "$archive"
  case ${builder[0]##*/} in
    buildah) "${builder[@]}" push --quiet "$tag" "oci-archive:$archive:$tag" ;;
    podman) "${builder[@]}" save --quiet --format oci-archive --output "$archive" "$tag" ;;
    *) "${builder[@]}" save --output "$archive" "$tag" ;;
  esac
  say "$archive: $(du -h "$archive" | cut -f1)"
fi
gpus=
[[ $variant == cpu ]] || gpus=' --gpus all'
cat >&2 <<TEXT
image: try it (podman or docker; MODELS is a folder with smollm2-135m-instruct):
  docker run --rm --read-only --tmpfs /tmp --cap-drop ALL$gpus $tag version
  docker run --rm --read-only --tmpfs /tmp --cap-drop ALL$gpus --shm-size 1g -v MODELS:/models:ro -v RUNS:/runs \\
    $tag demo --model /models/smollm2-135m-instruct --out /runs
image: RUNS must be writable for uid 65532; more in docs/container.md
TEXT
