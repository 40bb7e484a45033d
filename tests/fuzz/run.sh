#!/bin/bash
# Runs every fuzz target of build/fuzz for so many seconds each, from the seeds of tests/fuzz/corpus and what
# earlier runs found (kept in build/fuzz/corpus). Stops at the first failure, with the input that caused it.
#   tests/fuzz/run.sh SECONDS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ $# -ne 1 || ! $1 =~ ^[0-9]+$ ]]; then
  echo "usage: tests/fuzz/run.sh SECONDS" >&2
  exit 2
fi
SECONDS_EACH=$1
export UBSAN_OPTIONS=print_stacktrace=1 TMPDIR=${TMPDIR:-/dev/shm}
mkdir -p build/fuzz/crashes
for binary in build/fuzz/fuzz/*_fuzz; do
  name=$(basename "$binary" _fuzz)
  mkdir -p "build/fuzz/corpus/$name"
  echo "fuzz: $name for $SECONDS_EACH s"
  log=build/fuzz/$name.log
  if ! "$binary" -max_total_time="$SECONDS_EACH" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/crashes/ "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    grep -v 'libprotobuf ERROR' "$log" | tail -n 60
    echo "fuzz: $name failed; run it again with: $binary build/fuzz/crashes/<the file named above>"
    exit 1
  fi
  grep -E 'number_of_executed_units|new_units_added|peak_rss' "$log" | sed 's/^stat::/  /'
done
