#!/bin/sh
# A task of several turns on two cores: the model guesses a number from 1 to 9 and is told after each guess whether
# the secret one is higher or lower; it has four guesses. Makes the rows, a language model with random weights, a
# short supervised warm-up, and then GRPO. Run it in the top folder after `make build`. With --prepare it stops
# before GRPO. UPDATES ends the warm-up after so many, SEED is the seed of everything.
#
#   "Guess a number from 1 to 9."   "3"   "higher"   "8"   "lower"   "5"   and that was it: reward 1
#
# The warm-up shows the form of the game and a bad player: seven of ten guesses repeat the last one, and only the
# others take what was said into account.
set -eu
tandem=${TANDEM:-build/release/bin/tandem}
out=${OUT:-runs/guess_number}
seed=${SEED:-1}
mkdir -p "$out"

# A row for each secret number, and 8000 games for the warm-up. Supervised learning is of the last message of a row
# only, so a game becomes a row for each of its turns.
python3 - "$out" "$seed" <<'PYTHON'
import json, random, sys

out, dice = sys.argv[1], random.Random(int(sys.argv[2]))
prompt = "Guess a number from 1 to 9."
with open(f"{out}/secrets.jsonl", "w") as file:
    for secret in range(1, 10):
        print(json.dumps({"prompt": prompt, "secret": secret}), file=file)
with open(f"{out}/warm_up.jsonl", "w") as rows, open(f"{out}/text.txt", "w") as text:
    for game in range(8000):
        secret, guess, lowest, highest = dice.randint(1, 9), None, 1, 9
        messages = [{"role": "user", "content": prompt}]
        for turn in range(4):
            if guess is None or dice.random() < 0.3:
                guess = dice.randint(lowest, highest)
            messages.append({"role": "assistant", "content": str(guess)})
            print(json.dumps({"messages": messages}), file=rows)
            if guess == secret:
                break
            messages.append({"role": "user", "content": "higher" if guess < secret else "lower"})
            if guess < secret:
                lowest = max(lowest, guess + 1)
            else:
                highest = min(highest, guess - 1)
        if game < 60:
            for message in messages:
                print(message["role"], message["content"], sep="\n", file=text)
PYTHON
if [ ! -e "$out/fresh" ]; then
  "$tandem" init --out "$out/fresh" --text "$out/text.txt" --vocab 320 --hidden 64 --layers 3 \
    --heads 4 --kv-heads 4 --intermediate 192 --untied --context 128 --seed "$seed"
fi
if [ ! -e "$out/model" ]; then
  "$tandem" sft --model "$out/fresh" --data "$out/warm_up.jsonl" --out "$out/model" \
    --epochs 1 --max-updates "${UPDATES:-0}" --batch 32 --lr 1.5e-3 --seed "$seed"
fi
if [ "${1:-}" = --prepare ]; then exit; fi
exec "$tandem" run examples/guess_number.yaml --clean --set trainer.seed="$seed" "$@"
