#!/bin/sh
# A task of several steps on two cores: sums of three digits with a line for each addition. Makes the
# problems, a language model with random weights, a short supervised warm-up, and then GRPO. Run it in
# the top folder after `make build`. With --prepare it stops before GRPO.
#
#   prompt "3+4+5"   completion "3+4=7" and in a line of its own "7+5=12"
#
# examples/sums_reward.py rewards each line by itself: a process reward.
set -eu
tandem=${TANDEM:-build/release/bin/tandem}
out=${OUT:-runs/sums}
mkdir -p "$out"

# All 1000 sums of three digits. Every seventh is held out; every second of the rest has its solution in
# warm_up.jsonl.
awk -v out="$out" 'BEGIN {
  for (i = 0; i < 1000; ++i) {
    n = (i * 389) % 1000   # a fixed order that mixes them
    a = int(n / 100); b = int(n / 10) % 10; c = n % 10
    first = sprintf("%d+%d=%d", a, b, a + b)
    second = sprintf("%d+%d=%d", a + b, c, a + b + c)
    prompt = sprintf("%d+%d+%d", a, b, c)
    line = sprintf("{\"prompt\":\"%s\",\"answer\":\"%d\",\"steps\":[\"%s\",\"%s\"]}", prompt, a + b + c, first, second)
    print line > (out (i % 7 == 3 ? "/held_out.jsonl" : "/train.jsonl"))
    if (i % 7 != 3 && i % 2 == 0) printf "{\"prompt\":\"%s\",\"answer\":\"%s\\n%s\"}\n", prompt, first, second > (out "/warm_up.jsonl")
    if (i < 40) print prompt "\n" first "\n" second > (out "/text.txt")
  }
}'
if [ ! -e "$out/fresh" ]; then
  "$tandem" init --out "$out/fresh" --text "$out/text.txt" --vocab 260 --hidden 96 --layers 3 \
    --heads 4 --kv-heads 2 --intermediate 288 --context 64 --seed 1
fi
if [ ! -e "$out/model" ]; then
  "$tandem" sft --model "$out/fresh" --data "$out/warm_up.jsonl" --out "$out/model" \
    --epochs "${EPOCHS:-45}" --batch 32 --lr 2e-3
fi
if [ "${1:-}" = --prepare ]; then exit; fi
exec "$tandem" run examples/sums.yaml --clean "$@"
