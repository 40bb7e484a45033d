"""Rewards in TRL's form, for any data whose rows have an `answer`: one point for the right last number, a tenth for an answer
that is short. A run file names them: `reward: {python: {functions: examples/my_reward.py:score}}`. Try them without a run:
`tandem reward examples/my_reward.py --data FILE`.
"""
import re


def text_of(completion):
    """Completions are texts, or messages where the prompt of the data is messages."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def score(completions, answer, **kwargs):
    """1 where the last number of the completion is that of the answer; None where the answer has none."""
    rewards = []
    for completion, wanted in zip(completions, answer):
        right = re.findall(r"-?\d+(?:\.\d+)?", str(wanted).replace(",", ""))
        said = re.findall(r"-?\d+(?:\.\d+)?", text_of(completion).replace(",", ""))
        rewards.append(float(bool(said) and float(said[-1]) == float(right[-1])) if right else None)
    return rewards


def short(completion_ids, most=64, **kwargs):
    """0.1 for completions of at most `most` tokens."""
    return [0.1 if len(ids) <= most else 0.0 for ids in completion_ids]
