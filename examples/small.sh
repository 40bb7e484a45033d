#!/bin/sh
# Makes a language model on two cores: a tokenizer and random weights, a short supervised warm-up after
# which it solves some one-digit sums, and then GRPO. Run it in the top folder after `make build`. With
# --prepare it stops before GRPO. EPOCHS is the length of the warm-up.
set -eu
tandem=${TANDEM:-build/release/bin/tandem}
out=${OUT:-runs/small}
mkdir -p "$out"

# All 100 sums a+b with a, b in 0..9. Every seventh is held out.
awk -v out="$out" 'BEGIN {
  for (a = 0; a < 10; ++a) for (b = 0; b < 10; ++b) {
    line = sprintf("{\"prompt\":\"%d + %d =\",\"answer\":\"%d\"}", a, b, a + b)
    print line > (out ((a * 10 + b) % 7 == 3 ? "/held_out.jsonl" : "/train.jsonl"))
    print a " + " b " = " a + b > (out "/text.txt")
  }
}'
"$tandem" init --out "$out/fresh" --text "$out/text.txt" --vocab 300 --hidden 128 --layers 4 \
  --heads 4 --kv-heads 2 --intermediate 384 --context 64 --seed 1
"$tandem" sft --model "$out/fresh" --data "$out/train.jsonl" --out "$out/model" \
  --epochs "${EPOCHS:-70}" --batch 43 --lr 1e-3
if [ "${1:-}" = --prepare ]; then exit; fi
"$tandem" eval --model "$out/model" --data "$out/held_out.jsonl" --max-new-tokens 8 -k 8
exec "$tandem" run examples/small.yaml --clean "$@"
