#!/bin/bash
# Packs the cuda build for a machine with a GPU, and runs its tests and benchmarks there.
#
#   deploy/gpu/run.sh bundle [DIR]    here: packs build/cuda into DIR (build/gpu) in parts of at most 56 MiB, with
#                                     stripped programs and the shared libraries that the target may lack, but
#                                     without LibTorch and CUDA.
#   deploy/gpu/run.sh on-target DIR   on the target, in the folder of the parts: unpacks them into DIR, finds
#                                     LibTorch through python3 (torch 2.11.0+cu130), runs the tests with label gpu
#                                     and the benchmarks, and writes results/DATE-DEVICE.md and .log into DIR.
#   deploy/gpu/run.sh dry-run         here: bundle, then on-target without a device: unpacks everything and starts
#                                     every program; names the tests that need a device and does not run them.
#
#   deploy/gpu/run.sh plan            prints the steps of the quick pass with their time limits.
#
# QUICK=1 on the target: a first pass in at most 8 minutes (QUICK_SECONDS). It checks that the programs start, that kernels,
# engine and trainer agree with the CPU's, that both sides give the same bits in exact mode, and that ten GRPO steps run.
# Then come decode and push benchmarks. Steps over their limit are ended.
set -euo pipefail
BEGAN=$(date +%s)
QUICK_SECONDS=${QUICK_SECONDS:-480}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PART_BYTES=$((56 * 1024 * 1024))
KERNEL_TESTS=(common_kernel_gpu_tests engine_kernel_gpu_tests trainer_kernel_gpu_tests)
ENGINE_TESTS=(engine_gpu_tests trainer_gpu_tests parity_gpu_tests)
TESTS=("${KERNEL_TESTS[@]}" "${ENGINE_TESTS[@]}" collective_worker)
# The steps of the quick pass: time limit in seconds, name and function. The rest of QUICK_SECONDS is for unpacking.
QUICK_PLAN=(
  "10|every library is found|libraries_are_found"
  "10|programs start|bin/tandem version"
  "60|kernels, engine and trainer agree with the CPU|tests_beside_a_model"
  "25|NCCL with one rank|collectives"
  "45|the exact null: delta is 0.0 for every token|exact_null"
  "60|ten GRPO steps|quick_train"
  "120|supervised trainers, PPO with a critic|algorithms"
  "40|decode benchmark|quick_decode"
  "40|push benchmark|quick_push"
)
PROGRAMS=(tandem rollout_server trainer)
PYTHON=${PYTHON:-python3}
[[ $PYTHON != */* || $PYTHON == /* ]] || PYTHON=$PWD/$PYTHON  # the script is called from other folders

say() { echo "gpu: $*" >&2; }
stop() { say "$*"; exit 2; }

# Shared libraries that are neither a part of every Linux nor of LibTorch. The programs find them by their run path
# ($ORIGIN/../lib, cmake/cuda.cmake). libstdc++ is that of the target, which must not be older than the one here.
foreign_libraries() {  # foreign_libraries PROGRAM...
  ldd "$@" | sed -n 's/^\t[^ ]* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -Ev '/(libc|libm|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s|ld-linux[^/]*|libgomp)\.so|/site-packages/'
}

bundle() {  # bundle OUT
  local top out=$1 stage
  top=$(cd "$HERE/../.." && pwd)
  cd "$top"
  local build=build/cuda program
  for program in "${PROGRAMS[@]}"; do
    [[ -x $build/bin/$program ]] || stop "$build/bin/$program is missing: make cuda"
  done
  stage=$(mktemp -d)
  mkdir -p "$stage/bin" "$stage/lib" "$stage/tests/bench" "$stage/deploy"
  for program in "${PROGRAMS[@]}"; do cp "$build/bin/$program" "$stage/bin/"; done
  cp "$build/bin/libtandem_push_member.so" "$stage/bin/"
  for program in "${TESTS[@]}"; do cp "$build/tests/$program" "$stage/bin/"; done
  foreign_libraries "$stage"/bin/* | xargs -I{} cp -L {} "$stage/lib/"
  strip "$stage"/bin/*
  cp -r tests/bench/peers "$stage/tests/bench/"
  cp --parents tests/pytest.ini tests/common/comm/collective_test.py tests/support/python/free_ports.py "$stage/"
  cp -r deploy/gpu "$stage/deploy/"
  mkdir -p "$stage/tests/testdata"
  cp -r tests/testdata/qwen2-tokenizer tests/testdata/smollm2-tokenizer "$stage/tests/testdata/"
  git describe --always --dirty=+ --abbrev=12 >"$stage/COMMIT" 2>/dev/null || echo unknown >"$stage/COMMIT"
  echo "$top" >"$stage/SOURCE_DIR"
  rm -rf "$out"
  mkdir -p "$out"
  # The programs share most of their code: a dictionary as large as all of them makes the archive a third of gzip's.
  tar -C "$stage" -cf - . | xz -T1 --lzma2=preset=3,dict=256MiB | split -b "$PART_BYTES" - "$out/tandem-gpu.part-"
  cp "$HERE/run.sh" "$out/"
  rm -rf "$stage"
  (cd "$out" && sha256sum tandem-gpu.part-* >SHA256SUMS)
  say "$(du -sh "$out" | cut -f1) in $(ls "$out"/tandem-gpu.part-* | wc -l) parts: $out"
}

# Sets LD_LIBRARY_PATH to the libraries of the torch that is installed on the target.
find_libtorch() {
  local found
  found=$("$PYTHON" - <<'PY'
import glob, os, torch
if not torch.__version__.startswith("2.11.0+cu130"):
    raise SystemExit(f"torch is {torch.__version__}, the programs were built against 2.11.0+cu130")
top = os.path.dirname(torch.__file__)
wheels = glob.glob(os.path.join(os.path.dirname(top), "nvidia", "*", "lib"))
print(":".join([os.path.join(top, "lib"), *wheels]))
PY
  ) || stop "no LibTorch 2.11.0+cu130 through $PYTHON (set PYTHON)"
  export LD_LIBRARY_PATH=$found${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

device_name() {
  "$PYTHON" -c 'import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none")'
}

unpack() {  # images with Python may lack xz
  if command -v xz >/dev/null; then
    xz -dc
  else
    "$PYTHON" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.stdin.buffer), sys.stdout.buffer)'
  fi
}

# Writes one line of the result page for a command: its name, its seconds, and whether it passed.
step() {  # step NAME COMMAND...
  local name=$1 start outcome=passed
  shift
  start=$(date +%s)
  { echo; echo "=== $name: $*"; } >>"$LOG"
  "$@" >>"$LOG" 2>&1 || outcome="FAILED ($?)"
  say "$name: $outcome"
  echo "| $name | $outcome | $(($(date +%s) - start)) s |" >>"$PAGE"
  [[ $outcome == passed ]] || FAILURES=$((FAILURES + 1))
}

find_testdata() {  # tests read their data from the paths of the build
  local source
  source=$(cat SOURCE_DIR)
  if [[ ! -e $source/tests/testdata ]]; then
    mkdir -p "$source/tests"
    ln -s "$PWD/tests/testdata" "$source/tests/testdata"
  fi
}

collectives() {
  TEST_BACKEND=nccl TANDEM_CUDA=ON TANDEM_TESTS="$PWD/bin" \
    "$PYTHON" -m pytest -q -x -p no:cacheprovider -k one_rank tests/common/comm/collective_test.py
}

run_tests() {
  find_testdata
  step "kernels, engine and trainer agree with the CPU" suites "${KERNEL_TESTS[@]}" "${ENGINE_TESTS[@]}"
  step "collectives over NCCL, one rank" collectives
}

# Runs every suite of the tests in a process of its own, twelve at a time: after a fault of a kernel a process can no longer
# use its device, and the other suites shall be seen. Prints a line for each suite and the output of those that fail.
suites() {  # suites TEST...
  local test
  mkdir -p results/suites
  export OMP_NUM_THREADS=2
  for test in "$@"; do
    "bin/$test" --gtest_list_tests | sed -n "s/^\([^ ]*\)\..*/$test \1/p"
  done | xargs -P 12 -L 1 "$BASH" -c 'log=results/suites/$0.${1//\//-}
    if timeout --kill-after=2 100 "bin/$0" --gtest_brief=1 --gtest_filter="$1.*" >"$log" 2>&1; then
      echo "$0 $1: passed"; rm "$log"
    else
      echo "$0 $1: FAILED ($?)"
    fi'
  local logs=(results/suites/*)
  if [[ ! -e ${logs[0]} ]]; then return; fi
  for test in "${logs[@]}"; do echo "--- ${test##*/}"; tail -n 60 "$test"; done
  return 1
}

tests_beside_a_model() {
  find_testdata
  local failed=0
  random_model 0.5b &
  suites "${KERNEL_TESTS[@]}" "${ENGINE_TESTS[@]}" || failed=1
  wait
  return $failed
}

random_model() {  # random_model SHAPE
  [[ -f models/$1/model.safetensors ]] ||
    "$PYTHON" deploy/gpu/random_model.py "$1" "models/$1" --tokenizer tests/testdata/qwen2-tokenizer
}
quick_train() {
  bin/tandem bench train --device cuda --model models/0.5b --dtype bf16 --steps 10 --out runs/quick --prompts 8 \
    --group-size 8 --prompt-tokens 128 --max-new-tokens 64
}
algorithms() {  # their losses beside those on the CPU
  [[ -f models/tiny/model.safetensors ]] ||
    "$PYTHON" deploy/gpu/random_model.py tiny models/tiny --tokenizer tests/testdata/qwen2-tokenizer
  "$PYTHON" deploy/gpu/algorithms.py bin models/tiny runs/algorithms
}
quick_decode() {
  bin/tandem bench rollout --device cuda --model models/0.5b --cases decode-1,decode-64,decode-256 \
    --prompt-tokens 128 --max-new-tokens 64 --repeats 1
}
quick_push() {
  bin/tandem bench push --device cuda --model models/0.5b --num-servers 1 --transports stream --repeats 3 \
    --logs runs/push
}

# The output of a step is also written to the page. A step ends at the latest when the pass does.
quick_step() {  # quick_step SECONDS NAME COMMAND...
  local limit=$1 name=$2 left
  shift 2
  left=$((BEGAN + QUICK_SECONDS - $(date +%s)))
  if ((left < 5)); then
    echo "| $name | not run: no time is left | |" >>"$PAGE"
    return
  fi
  step "$name" timeout --kill-after=2 "$((limit < left ? limit : left))" "$BASH" "$RUN" call "$@"
  { echo; echo "$name:"; echo '```'; sed -n '/^=== /h;/^=== /!H;${x;p}' "$LOG" | tail -n 40; echo '```'; } >>"$DETAILS"
}

quick() {
  local entry limit name command
  RUN=$PWD/deploy/gpu/run.sh
  export PYTHON
  for entry in "${QUICK_PLAN[@]}"; do
    IFS='|' read -r limit name command <<<"$entry"
    # shellcheck disable=SC2086  # a command and its words
    quick_step "$limit" "$name" $command
  done
}

# Prints the plan as a table. Fails if the limits add up to more than the pass.
plan() {
  local entry limit name sum=0
  for entry in "${QUICK_PLAN[@]}"; do
    IFS='|' read -r limit name _ <<<"$entry"
    sum=$((sum + limit))
    echo "| $name | at most $limit s |"
  done
  echo "| in all | $sum s of $QUICK_SECONDS |"
  ((sum + 30 <= QUICK_SECONDS))
}

bench_model() {  # bench_model SHAPE CASES [FLAG...]
  local model=models/$1 cases=$2 name="Qwen2.5-$1${3:+ ${*:3}}"
  [[ -f $model/model.safetensors ]] ||
    "$PYTHON" deploy/gpu/random_model.py "$1" "$model" --tokenizer tests/testdata/qwen2-tokenizer
  step "bench $name" bin/tandem bench rollout --device cuda --model "$model" --cases "$cases" \
    --prompt-tokens 512 --max-new-tokens 128 --repeats 3 "${@:3}"
  { echo; echo "$name, random weights:"; echo '```'; tail -n 12 "$LOG"; echo '```'; } >>"$DETAILS"
}

train_model() {  # train_model SHAPE [FLAG...]: runs GRPO steps with server and trainer on the same device
  local model=models/$1 name="GRPO steps of Qwen2.5-$1${2:+ ${*:2}}"
  [[ -f $model/model.safetensors ]] ||
    "$PYTHON" deploy/gpu/random_model.py "$1" "$model" --tokenizer tests/testdata/qwen2-tokenizer
  step "$name" bin/tandem bench train --device cuda --model "$model" --dtype bf16 --steps 10 --out "runs/train-$1" \
    --prompts 16 --group-size 8 --prompt-tokens 256 --max-new-tokens 128 "${@:2}"
  { echo; echo "$name, random weights:"; echo '```'; tail -n 4 "$LOG"; echo '```'; } >>"$DETAILS"
}

exact_null() {  # the log-probs of both sides must be equal
  bin/tandem bench train --device cuda --numerics exact --model models/0.5b --dtype bf16 --steps 3 --out runs/exact \
    --prompts 4 --group-size 4 --prompt-tokens 64 --max-new-tokens 32 &&
    "$PYTHON" - <<'PY'
import json
deltas = [json.loads(line)["drift/max_abs_delta"] for line in open("runs/exact/run/metrics.jsonl")]
print("largest abs(delta) of each step:", deltas)
raise SystemExit(len(deltas) != 4 or any(deltas))
PY
}

cublas_rows() {  # cublas_rows FLAG...: prints the table and writes it to the page
  local table
  table=$("$PYTHON" deploy/gpu/cublas_rows.py "$@") || return
  echo "$table"
  { echo; echo "Rows of cuBLAS's products beside the same rows alone:"; echo; echo "$table"; } >>"$DETAILS"
}

libraries_are_found() {  # the libraries of each program: gRPC's are in the bundle, LibTorch's on the target
  local program found
  for program in bin/*; do
    found=$(ldd "$program")
    if grep "not found" <<<"$found"; then return 1; fi
    if grep -q libgrpc <<<"$found" && ! grep -q "$PWD/.*libgrpc" <<<"$found"; then
      echo "$program takes gRPC from elsewhere" && return 1
    fi
  done
}

refused_without_device() {  # refused_without_device MESSAGE COMMAND...: COMMAND must fail, and print MESSAGE
  local said
  if said=$("${@:2}" 2>&1); then
    echo "$said"
    return 1
  fi
  echo "$said"
  [[ $said == *"$1"* ]]
}

on_target() {  # on_target DIR
  local parts=$HERE dir=$1 device
  mkdir -p "$dir"
  (cd "$parts" && sha256sum --quiet -c SHA256SUMS) || stop "a part is broken"
  cat "$parts"/tandem-gpu.part-* | unpack | tar -C "$dir" -xf -
  cd "$dir"
  find_libtorch
  device=$(device_name)
  mkdir -p results
  local stem
  stem=results/$(date -u +%Y-%m-%d)-$(tr -c 'A-Za-z0-9\n' '-' <<<"$device" | tr A-Z a-z)
  PAGE=$stem.md LOG=$stem.log DETAILS=$(mktemp) FAILURES=0
  : >"$LOG"
  {
    echo "# On $device, $(date -u '+%Y-%m-%d %H:%M') UTC"
    echo
    echo "Build $(cat COMMIT); torch $("$PYTHON" -c 'import torch; print(torch.__version__)')."
    echo "Command: \`${QUICK:+QUICK=1 }deploy/gpu/run.sh on-target DIR\`."
    echo "Output: $(basename "$LOG")."
    echo
    echo "| what | outcome | took |"
    echo "|---|---|---|"
  } >"$PAGE"
  if [[ -n ${QUICK:-} && $device != none ]]; then
    quick
    finish
    return
  fi
  step "every library is found" libraries_are_found
  step "programs start" bin/tandem version
  if [[ $device == none ]]; then
    step "the quick pass fits" plan
    step "without a device the engine says so" refused_without_device "this machine has no CUDA device" \
      bin/tandem bench rollout --device cuda --model "$(tiny_model)" --cases decode-1
    step "without a device the pair says so" \
      refused_without_device "trainer.device is cuda, and this machine has no CUDA device" \
      bin/tandem bench train --device cuda --model "$(tiny_model)" --steps 1 --out runs/refused
    step "cublas_rows.py, on the CPU" cublas_rows --shapes tiny --rows 2,5 --device cpu
    for test in "${TESTS[@]}"; do echo "| $test | not run: no device | |" >>"$PAGE"; done
  else
    run_tests
    bench_model 0.5b decode-1,decode-64,decode-256,prefill-8,first-token-8 --peer transformers
    bench_model 0.5b decode-1,decode-64,decode-256 --no-cuda-graphs
    bench_model 0.5b decode-1,decode-64,prefill-8 --numerics fast,invariant
    train_model 0.5b
    step "the exact null: delta is 0.0 for every token" exact_null
    step "supervised trainers, PPO with a critic" algorithms
    step "do rows of cuBLAS keep their bits" cublas_rows --shapes 0.5b
    bench_model 1.5b decode-1,decode-64,decode-256,prefill-8 --peer transformers
    bench_model 7b decode-1,decode-64,prefill-8 --peer transformers
    bench_model 7b decode-1,decode-64 --numerics fast,invariant
    step "do rows of cuBLAS keep their bits, larger" cublas_rows --shapes 1.5b,7b
  fi
  finish
}

finish() {
  cat "$DETAILS" >>"$PAGE"
  rm -f "$DETAILS"
  say "results: $PWD/$PAGE"
  cat "$PAGE"
  [[ $FAILURES -eq 0 ]]
}

tiny_model() {
  [[ -f models/tiny/model.safetensors ]] ||
    "$PYTHON" deploy/gpu/random_model.py tiny models/tiny --tokenizer tests/testdata/qwen2-tokenizer >&2
  echo models/tiny
}

case ${1:-} in
  plan) plan ;;
  call) shift; "$@" ;;  # a step of the quick pass, in a separate shell that can be ended
  bundle) bundle "$(realpath -m "${2:-build/gpu}")" ;;
  on-target) on_target "$(realpath -m "${2:?name a directory}")" ;;
  dry-run)
    # Here, LibTorch is that of the project.
    own=$HERE/../../.deps/venv/bin/python
    [[ $PYTHON != python3 || ! -x $own ]] || PYTHON=$own
    export PYTHON
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    bundle "$scratch/parts"
    CUDA_VISIBLE_DEVICES='' "$scratch/parts/run.sh" on-target "$scratch/target"
    ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
