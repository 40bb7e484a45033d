"""`tandem drift why RECORDS` as a user meets it: a records file in, a verdict out, without weights."""
import json
import math
import random

import pytest

from forked_tandem import forked_tandem


def why(path, *arguments):
    return forked_tandem("drift", "why", path, *arguments)


def rows_of(behaviour=lambda x: x, noise=0.01, rows=24, tokens=40):
    """Rows of 40 drawn tokens behind three of a prompt; `behaviour` changes what one side wrote."""
    rng = random.Random(7)
    lines = []
    for _ in range(rows):
        said = [math.log(rng.random() * 0.98 + 0.01) for _ in range(tokens)]
        scored = [x + noise * rng.gauss(0, 1) * (1 - math.exp(x)) for x in said]
        lines.append({"token_ids": [1, 2, 3] + [rng.randrange(4, 500) for _ in said], "prompt_length": 3,
                      "behaviour_logprobs": [None] * 3 + behaviour(said), "proximal_logprobs": [None] * 3 + scored})
    return lines


def write(path, rows, **header):
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"tandem_capture": 3, **header}, *rows)), encoding="utf-8")
    return path


def verdict(path, *arguments):
    done = why(path, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_healthy_records_are_of_the_size_of_numbers_alone(tmp_path):
    path = write(tmp_path / "records.jsonl", rows_of(), model="models/there")
    found = verdict(path)
    assert found["verdict"] == "numbers_alone"
    assert [sign["sign"] for sign in found["signs"] if sign["accuses"]] == []
    assert found["command"] == f"tandem drift why {path} --model models/there"
    assert found["training_effect"]["num_tokens"] == 24 * 40
    assert 0 < found["training_effect"]["mean_abs_delta"]["low"] < 0.01


def test_the_table_begins_with_the_headline_and_names_the_fault_with_its_numbers(tmp_path):
    path = write(tmp_path / "records.jsonl", rows_of(lambda said: said[1:] + [None]))
    done = why(path)
    assert done.returncode == 0
    assert done.stdout.startswith("Shown: ")
    said = " ".join(done.stdout.split())
    assert "24 of 24 rows are shifted by 1 token: behaviour_logprobs[t] belongs to proximal_logprobs[t + 1]" in said
    assert "behaviour_logprobs has no value for 24 of 960 (2.5 %) drawn tokens, each the last drawn token" in said


def test_logs_of_base_two_are_named(tmp_path):
    found = verdict(write(tmp_path / "records.jsonl", rows_of(lambda said: [x / math.log(2) for x in said])))
    assert found["verdict"] == "shown"
    assert found["signs"][0]["sign"] == "log_base"
    assert abs(found["signs"][0]["value"]["value"] - 1.4427) < 0.01


def test_one_side_alone_is_nothing_to_compare(tmp_path):
    rows = rows_of()
    for row in rows:
        del row["proximal_logprobs"]
    found = verdict(write(tmp_path / "records.jsonl", rows))
    assert found["verdict"] == "nothing_to_compare"
    assert found["training_effect"] == {"num_tokens": 0, "num_rows": 0}


def test_the_same_file_gives_the_same_verdict(tmp_path):
    path = write(tmp_path / "records.jsonl", rows_of())
    assert why(path, "--json").stdout == why(path, "--json", "--seed", 1).stdout


def test_a_page_is_written_that_holds_the_verdict(tmp_path):
    path = write(tmp_path / "records.jsonl", rows_of(), model="</script><b>")
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    assert why(path, "--html", page, "--json-out", out).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert "records.jsonl - Tandem records" in text and '"numbers_alone"' in text and "by_position" in text
    assert "</script><b>" not in text
    assert json.loads(out.read_text(encoding="utf-8"))["verdict"] == "numbers_alone"


@pytest.mark.parametrize("flag", ["--html", "--json-out"])
def test_a_folder_that_is_not_there_is_a_fault_of_storage(tmp_path, flag):
    path = write(tmp_path / "records.jsonl", rows_of())
    done = why(path, flag, tmp_path / "none" / "out")
    assert done.returncode == 7
    assert f"there is no folder {tmp_path / 'none'}; make it first" in done.stderr


def test_a_file_that_cannot_be_read_is_bad_data_and_no_verdict(tmp_path):
    path = write(tmp_path / "records.jsonl", [{"token_ids": [1, 2], "behaviour_logprobs": [None, -1.0]}])
    done = why(path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "prompt_length" in done.stderr


@pytest.mark.parametrize("contents, found", [
    ("", "found an empty file"),
    ('[{"rollout_log_probs": [-1.0]}]', "is a JSON array"),
    ('{"prompt": "a", "rollout_log_probs": [-1.0]}\n', "found an object without it"),
    ("step 1 loss 0.2\n", "found not JSON"),
])
def test_a_file_that_is_no_records_file_gets_the_message_of_the_reader_and_the_way_to_records(tmp_path, contents, found):
    path = tmp_path / "theirs.jsonl"
    path.write_text(contents, encoding="utf-8")
    done = why(path)
    assert done.returncode == 3
    assert found in done.stderr and "theirs.jsonl" in done.stderr
    assert "tandem drift import --from" in done.stderr
    assert "manifest.json" not in done.stderr
    assert done.stderr == forked_tandem("drift", "check", path).stderr
