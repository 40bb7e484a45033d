"""`tandem drift phase` as a user meets it."""
import json
import os
import pathlib
import subprocess

import pytest

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
SMALL = ["--steps", "10", "--seeds", "2", "--methods", "none,token_tis"]


def phase(*arguments):
    return subprocess.run([TANDEM, "drift", "phase", *map(str, arguments)], capture_output=True,
                          text=True, timeout=120, check=False)


@pytest.mark.parametrize("arguments, said", [
    (["--study", "tables"], "table,predictors,kinds,all"),
    (["--cells", "lag_5"], 'no cell "lag_5"; there are no_gap, lag_4, lag_16'),
    (["--methods", "tis"], 'no method "tis"; there are none, token_tis'),
    (["--seeds", "0"], "Value 0 not in range 1 to 1000"),
    (["--steps", "0"], "Value 0 not in range 1 to 1000000"),
    (["--threads", "0"], "Value 0 not in range 1 to 1024"),
])
def test_a_wrong_value_is_refused_with_what_there_is(tmp_path, arguments, said):
    done = phase("--out", tmp_path / "runs", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "tandem drift phase --help lists what there is" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_directory_is_asked_for():
    done = phase()
    assert done.returncode == 2
    assert "--out" in done.stderr


def test_runs_that_are_there_are_not_made_again(tmp_path):
    first = phase("--out", tmp_path, "--cells", "no_gap", *SMALL)
    assert first.returncode == 0, first.stderr
    runs = (tmp_path / "runs.jsonl").read_text()
    assert len(runs.splitlines()) == 1 + 2 * 2
    again = phase("--out", tmp_path, "--cells", "no_gap,lag_4", *SMALL)
    assert again.returncode == 0, again.stderr
    more = (tmp_path / "runs.jsonl").read_text()
    assert more.startswith(runs)
    assert len(more.splitlines()) == 1 + 4 * 2
    assert "4/4" in again.stderr  # four runs were missing


def test_a_study_of_everything_leaves_a_page_and_its_numbers(tmp_path):
    done = phase("--out", tmp_path, "--study", "all", *SMALL,
                 "--cells", "no_gap,lag_4,away_from_reward_constant_0.01")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/phase.md\n"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(row["cell"], row["method"], row["seeds"]) for row in summary["table"]] == [
        ("no_gap", "none", 2), ("no_gap", "token_tis", 2), ("lag_4", "none", 2),
        ("lag_4", "token_tis", 2)]
    assert [row["direction"] for row in summary["kinds"]] == ["away_from_reward"] * 2
    assert abs(summary["kinds"][0]["first_kl"] - 0.01) < 0.001
    population = summary["populations"][0]
    assert population["healthy"] + population["collapsed"] == 8
    page = (tmp_path / "phase.md").read_text()
    assert "seeds 1 to 2, 10 steps" in page
    assert "| lag 4 |" in page


def test_a_file_of_something_else_is_bad_data(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"reward": 1}\n')
    done = phase("--out", tmp_path, *SMALL)
    assert done.returncode == 3
    assert "runs.jsonl:1: not runs of this version" in done.stderr


def test_a_directory_that_cannot_be_made_is_storage(tmp_path):
    (tmp_path / "file").write_text("")
    done = phase("--out", pathlib.Path(tmp_path / "file" / "runs"), *SMALL)
    assert done.returncode == 7
    assert "file" in done.stderr
