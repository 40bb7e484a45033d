#!/bin/sh
# A tool that has to be called, on two cores: products of two numbers of two digits, which the model cannot compute,
# and a calculator (examples/calculator.py). Makes the problems, a language model with random weights, a supervised
# warm-up after which it seldom calls the calculator, and then GRPO. Run it in the top folder after `make build`.
# With --prepare it stops before GRPO. UPDATES ends the warm-up after so many, SEED is the seed of everything.
#
#   prompt      37*46
#   completion  <tool_call>{"name": "calculator", "arguments": {"expression": "37*46"}}</tool_call>
#               the calculator says 1702
#               1702
set -eu
tandem=${TANDEM:-build/release/bin/tandem}
out=${OUT:-runs/calculator}
seed=${SEED:-1}
mkdir -p "$out"

# What the chat template shows of the tool in the warm-up is what it shows in the run.
PYTHONPATH=python:examples python3 -c 'import json
from calculator import calculator
from tandem_rl.environments.tool_schemas import schema_of
print(json.dumps([schema_of(calculator)]))' > "$out/tools.json"

# All 8100 products of two numbers of two digits; 100 are held out. The run takes those with a product of four digits,
# of which the warm-up has most. In the warm-up half of the problems are asked for in words, "with the calculator", and
# are answered by a call, from which the model learns to copy the problem. Of the others, which are written as in the
# run, one of six is answered by a call and five with the product at once. Supervised learning is of the last message of
# a row only, so the answer after the call is a row of its own.
python3 - "$out" "$seed" <<'PYTHON'
import json, random, sys

out, dice = sys.argv[1], random.Random(int(sys.argv[2]))
problems = [(f"{a}*{b}", str(a * b)) for a in range(10, 100) for b in range(10, 100)]
dice.shuffle(problems)
held_out, train = problems[:100], problems[100:]
for name, part in (("held_out", held_out), ("train", train)):
    with open(f"{out}/{name}.jsonl", "w") as file:
        for problem, answer in part:
            if len(answer) == 4:
                print(json.dumps({"prompt": problem, "answer": answer}), file=file)
tools = open(f"{out}/tools.json").read().strip()
with open(f"{out}/warm_up.jsonl", "w") as rows, open(f"{out}/text.txt", "w") as text:
    for i, (problem, answer) in enumerate(train):
        in_words = i % 2 == 0
        question = {"role": "user", "content": f"with the calculator: {problem}" if in_words else problem}
        call = {"role": "assistant", "content": '<tool_call>{"name": "calculator", "arguments": {"expression": "' + problem + '"}}</tool_call>'}
        result = [{"role": "tool", "content": answer}, {"role": "assistant", "content": answer}]
        print(json.dumps({"messages": [question, call if in_words or i // 2 % 6 == 0 else result[1]]}), file=rows)
        print(json.dumps({"messages": [question, call, *result]}), file=rows)
        if i < 60:
            print("system\n# Tools\n<tools>", tools[1:-1], "</tools>", sep="\n", file=text)
            print('A call: <tool_call>{"name": .., "arguments": {..}}</tool_call>', file=text)
            print("user with the calculator:", problem, "assistant", call["content"], "tool", f"<tool_response>{answer}</tool_response>",
                  "assistant", answer, sep="\n", file=text)
PYTHON
if [ ! -e "$out/fresh" ]; then
  "$tandem" init --out "$out/fresh" --text "$out/text.txt" --vocab 512 --hidden 96 --layers 3 \
    --heads 4 --kv-heads 4 --intermediate 288 --untied --context 320 --seed "$seed"
  cp examples/calculator.jinja "$out/fresh/chat_template.jinja"   # one that shows tools and what they return
fi
if [ ! -e "$out/model" ]; then
  "$tandem" sft --model "$out/fresh" --data "$out/warm_up.jsonl" --tools-file "$out/tools.json" --out "$out/model" \
    --epochs 2 --max-updates "${UPDATES:-0}" --batch 16 --lr 1.5e-3 --seed "$seed"
fi
if [ "${1:-}" = --prepare ]; then exit; fi
exec "$tandem" run examples/calculator.yaml --clean --set trainer.seed="$seed" "$@"
