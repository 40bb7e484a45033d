"""The examples of several turns (examples/guess_number.sh, examples/calculator.sh) do what their first lines say. They are run
shortened; with TANDEM_EXAMPLES_WHOLE they are run as they are, and have to learn."""
import json
import os
import re
import subprocess

import pytest

import small_run

SAID = (r"(<\|im_end\|>)?\n<\|im_start\|>user\n(higher|lower|Please guess a whole number\.)<\|im_end\|>\n"
        r"<\|im_start\|>assistant\n")
WHOLE = "TANDEM_EXAMPLES_WHOLE" in os.environ


def run_example(folder, name, *arguments, **variables):
    """Runs the script in a folder that has nothing but examples/ and python/; returns its run directory."""
    for part in ("examples", "python"):
        (folder / part).symlink_to(small_run.SOURCE / part)
    done = subprocess.run(["sh", f"examples/{name}.sh", *arguments], cwd=folder, capture_output=True, text=True, timeout=3000,
                          env={**os.environ, "TANDEM": str(small_run.TANDEM), **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / f"{name}-grpo"


def lines_of(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "reward/mean" in line], [line for line in lines if "eval/greedy" in line]


def conversations_of(run, step):
    """The completions of a step as (what the model wrote, what it was told) in the order of the turns."""
    for line in (run / "rollouts" / f"step_{step}.jsonl").read_text(encoding="utf-8").splitlines():
        for completion in json.loads(line)["completions"]:
            at, parts = 0, []
            for kind, count in completion.get("segments", [["drawn", len(completion["tokens"])]]):
                parts.append((kind, "".join(completion["tokens"][at:at + count])))
                at += count
            assert at == len(completion["tokens"])
            yield completion, parts


@pytest.mark.skipif(WHOLE, reason="the whole examples are run")
def test_the_guessing_game_is_played_in_several_turns(tmp_path):
    run = run_example(tmp_path, "guess_number", "--set", "trainer.steps=3", "--set", "trainer.completions_per_prompt=4", UPDATES="30")
    steps, evaluations = lines_of(run)
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert [line["step"] for line in evaluations] == [0, 3]
    for line in steps:
        assert 1 < line["turns/mean"] <= line["turns/max"] <= 4
        assert set(line["drift/by_turn"]) == {str(turn + 1) for turn in range(int(line["turns/max"]))}
    played = [parts for _, parts in conversations_of(run, 1)]
    assert [kind for kind, _ in max(played, key=len)][:3] == ["drawn", "given", "drawn"]
    for parts in played:
        for kind, text in parts:
            if kind == "given":
                assert re.fullmatch(SAID, text)


@pytest.mark.skipif(WHOLE, reason="the whole examples are run")
def test_the_calculator_answers_calls(tmp_path):
    # Too short a warm-up for calls that are worth reading: the model's call is what the row wants of it.
    run = run_example(tmp_path, "calculator", "--set", "trainer.steps=2", "--set", "trainer.prompts_per_step=4", UPDATES="100")
    steps, evaluations = lines_of(run)
    assert [line["step"] for line in steps] == [1, 2]
    assert max(line["turns/mean"] for line in steps) > 1


@pytest.mark.skipif(not WHOLE, reason="takes minutes: examples_whole")
@pytest.mark.parametrize("name", ["guess_number", "calculator"])
def test_reinforcement_learning_makes_most_of_a_bad_player(tmp_path, name):
    run = run_example(tmp_path, name)
    steps, evaluations = lines_of(run)
    assert steps[0]["reward/mean"] < 0.3
    last = [line["reward/mean"] for line in steps[-5:]]
    assert sum(last) / len(last) >= 0.8
    assert evaluations[0]["eval/greedy"] < 0.3 and evaluations[-1]["eval/greedy"] >= 0.8
