"""The examples of several turns as they are: they have to learn. Takes minutes."""
import pytest

from example_runs import lines_of, run_example


@pytest.mark.parametrize("name", ["guess_number", "calculator"])
def test_reinforcement_learning_makes_most_of_a_bad_player(tmp_path, name):
    run = run_example(tmp_path, name)
    steps, evaluations = lines_of(run)
    assert steps[0]["reward/mean"] < 0.3
    last = [line["reward/mean"] for line in steps[-5:]]
    assert sum(last) / len(last) >= 0.8
    assert evaluations[0]["eval/greedy"] < 0.3 and evaluations[-1]["eval/greedy"] >= 0.8
