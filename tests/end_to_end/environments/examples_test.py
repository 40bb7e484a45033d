"""The examples of several turns, shortened: they run, play several turns and are answered as they say. Whether they learn is
tested by examples_whole_test.py."""
import re

from example_runs import conversations_of, lines_of, run_example

SAID = (r"(<\|im_end\|>)?\n<\|im_start\|>user\n(higher|lower|Please guess a whole number\.)<\|im_end\|>\n"
        r"<\|im_start\|>assistant\n")


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


def test_the_calculator_answers_calls(tmp_path):
    # Too short a warm-up for calls that are worth reading: the model's call is what the row wants of it.
    run = run_example(tmp_path, "calculator", "--set", "trainer.steps=2", "--set", "trainer.prompts_per_step=4", UPDATES="200")
    steps, evaluations = lines_of(run)
    assert [line["step"] for line in steps] == [1, 2]
    assert max(line["turns/mean"] for line in steps) > 1
