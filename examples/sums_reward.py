#!/usr/bin/env python3
"""Process reward of examples/sums.sh: a completion has 1 where its last number is the answer, and each of its lines more where it
is that line of the solution ("steps" of the data): half of the reward, shared by the lines, each of which comes with the end of
its line. The trainer speaks with it in JSON lines (docs/data_and_rewards.md).
"""
import json
import sys


def line_rewards(completion, steps):
    """[{"end": byte where the line ends, "reward": its reward}] for as many lines as the solution has."""
    rewards, end = [], 0
    for line, step in zip(completion.encode().split(b"\n"), steps):
        end += len(line)
        if line:
            rewards.append({"end": end, "reward": 0.5 / len(steps) if line == step.encode() else 0.0})
        end += 1
    return rewards


def answer(question):
    completion = question["completion"]
    last = completion.split("=")[-1].strip()
    right = last == question["answer"] and not question["truncated"]
    return {"id": question["id"], "reward": float(right), "steps": line_rewards(completion, question["source"]["steps"])}


def main():
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
