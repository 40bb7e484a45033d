#!/bin/bash
# Puts the programs of the Kubernetes tests into .deps/kubernetes: kubectl, the control plane and the JobSet controller,
# built from their Go modules, etcd from its package, and the schemas for checks of manifests.
# Versions and checksums are those of tests/kubernetes/go_modules/*/go.{mod,sum} and of CRD_MODULES below.
# It can be repeated; parts that are up to date according to their stamp are skipped. deploy/setup/install.sh calls it.
#   deploy/setup/build_kubernetes.sh [--kubectl]
#     --kubectl: only kubectl (with kustomize) and the definitions, for the tests of manifests
# Compiling takes 4 minutes of one core for --kubectl and 12 for the rest. BUILD_JOBS=2 sets the number of jobs.
set -euo pipefail
if [[ $# -gt 1 || ${1:---kubectl} != --kubectl ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

MIN_GO_MINOR=23
MODULES=$PWD/tests/kubernetes/go_modules
OUT=$PWD/.deps/kubernetes
BIN=$OUT/bin
CRDS=$OUT/crds
BUILD_JOBS=${BUILD_JOBS:-2}
# MODULE@VERSION FOLDER FILES... Every file is named, so that a release that moves one is noticed.
CRD_MODULES=(
  "sigs.k8s.io/jobset@v0.8.1 config/components/crd/bases jobset.x-k8s.io_jobsets.yaml"
  "sigs.k8s.io/lws@v0.6.2 config/crd/bases leaderworkerset.x-k8s.io_leaderworkersets.yaml"
  "sigs.k8s.io/kueue@v0.11.9 config/components/crd/bases kueue.x-k8s.io_clusterqueues.yaml
   kueue.x-k8s.io_localqueues.yaml kueue.x-k8s.io_resourceflavors.yaml kueue.x-k8s.io_workloadpriorityclasses.yaml
   kueue.x-k8s.io_topologies.yaml"
  "github.com/prometheus-operator/prometheus-operator@v0.81.0 example/prometheus-operator-crd
   monitoring.coreos.com_podmonitors.yaml monitoring.coreos.com_prometheusrules.yaml"
)

say() { echo "setup: $*" >&2; }
stop() { say "$*"; exit 2; }

find_go() {
  local candidate version
  for candidate in ${GO:-} go /usr/local/go/bin/go /usr/lib/go-1.2*/bin/go; do
    version=$("$candidate" env GOVERSION 2>/dev/null) || continue
    [[ $version =~ ^go1\.([0-9]+) ]] || continue
    if ((BASH_REMATCH[1] >= MIN_GO_MINOR)); then
      command -v "$candidate"
      return
    fi
  done
  stop "no Go >= 1.$MIN_GO_MINOR here, which builds kubectl and the control plane of the tests: install one from" \
    "https://go.dev/dl (a folder in /usr/local/go is found), or golang-1.2N from Debian's backports; GO=path names another"
}

# Builds packages of the module in MODULES/$1 into BIN, unless they were already built from the same files.
build() {  # build MODULE PACKAGE...
  local module=$1 package name stamp wanted
  shift
  for package in "$@"; do
    name=${package##*/}
    stamp=$BIN/.$name.stamp
    wanted=$(cat "$MODULES/$module/go.mod" "$MODULES/$module/go.sum" | sha256sum)
    [[ -x $BIN/$name && $(cat "$stamp" 2>/dev/null) == "$wanted" ]] && continue
    say "building $name"
    mkdir -p "$BIN"
    local version flags="-s -w"
    version=$(cd "$MODULES/$module" && "$GO" list -mod=readonly -m -f '{{.Version}}' "$(module_of "$module")")
    # The answer of `kubectl version` and of the API server's /version, because a build from modules has no tag.
    flags+=" -X k8s.io/component-base/version.gitVersion=$version"
    flags+=" -X k8s.io/component-base/version.gitMajor=${version:1:1}"
    flags+=" -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$version")"
    (cd "$MODULES/$module" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false nice -n 10 "$GO" build -mod=readonly \
      -trimpath -p "$BUILD_JOBS" -ldflags "$flags" -o "$BIN/.$name.partial" "$package") ||
      stop "building $package failed"
    mv "$BIN/.$name.partial" "$BIN/$name"
    echo "$wanted" >"$stamp"
  done
}

module_of() {
  case $1 in
    kubernetes) echo k8s.io/kubernetes ;;
    jobset) echo sigs.k8s.io/jobset ;;
  esac
}

module_folder() {  # module_folder MODULE[@VERSION]: prints the folder of a module. If it is missing, go downloads it and checks its checksum
  (cd "$MODULES/kubernetes" && "$GO" mod download -json "$1") | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}

fetch_definitions() {
  local wanted line module folder files file from
  wanted=$(printf '%s\n' "${CRD_MODULES[@]}" | cat - "$MODULES/kubernetes/go.mod" | sha256sum)
  [[ $(cat "$CRDS/.stamp" 2>/dev/null) == "$wanted" ]] && return
  say "fetching the custom resource definitions of JobSet, LeaderWorkerSet, Kueue and the Prometheus operator"
  mkdir -p "$CRDS"
  for line in "${CRD_MODULES[@]}"; do
    read -r -d '' module folder files <<<"$line" || true
    from=$(module_folder "$module")
    [[ -d $from/$folder ]] || stop "$module has no folder $folder"
    for file in $files; do
      install -m 644 "$from/$folder/$file" "$CRDS/$file"
    done
  done
  from=$(module_folder "${CRD_MODULES[0]%% *}")
  "$BIN/kubectl" kustomize "$from/config/components/webhook" >"$OUT/jobset_webhooks.yaml"
  from=$(module_folder k8s.io/kubernetes)
  install -m 644 "$from/api/openapi-spec/swagger.json" "$OUT/kubernetes_openapi.json"
  echo "$wanted" >"$CRDS/.stamp"
}

# Unpacked from its package and not installed, because installing it would start an etcd on this machine.
fetch_etcd() {
  [[ -x $BIN/etcd ]] && return
  local folder
  folder=$(mktemp -d)
  say "fetching etcd"
  (cd "$folder" && apt-get download -qq etcd-server >/dev/null 2>&1) || stop "no package etcd-server: apt-get update?"
  dpkg-deb -x "$folder"/etcd-server_*.deb "$folder"
  install -m 755 "$folder/usr/bin/etcd" "$BIN/etcd"
  rm -rf "$folder"
}

GO=$(find_go)
mkdir -p "$OUT"
build kubernetes k8s.io/kubernetes/cmd/kubectl
fetch_definitions
[[ ${1:-} == --kubectl ]] && exit
fetch_etcd
build kubernetes k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager,scheduler}
build jobset sigs.k8s.io/jobset
