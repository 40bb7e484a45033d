"""An environment of verifiers 0.1 with sums of small numbers, one turn each (docs/openai.md).

    PYTHONPATH=examples .deps/engines/verifiers/bin/vf-eval verifiers_sums -m smollm2 -b http://127.0.0.1:8000/v1
"""
import verifiers as vf
from datasets import Dataset

PAIRS = [(2, 2), (3, 4), (1, 5)]


def right(completion, answer) -> float:
    return float(answer in completion[-1]["content"])


def short(completion) -> float:
    return float(len(completion[-1]["content"]) < 40)


def load_environment(**kwargs):
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in PAIRS]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), system_prompt="Be brief.",
                            rubric=vf.Rubric(funcs=[right, short], weights=[1.0, 0.25]), **kwargs)
