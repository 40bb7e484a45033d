"""The protocol of engine adapters (docs/engines.md), held against an engine without a model."""
import json
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT

FAKE = pathlib.Path(__file__).with_name("fake_engine.py")
sys.path.insert(0, str(FAKE.parent))
from fake_engine import NATS, FakeEngine  # noqa: E402

from tandem_rl.engines.protocol import Arguments, reply_to  # noqa: E402


def run_fake(requests, *arguments):
    return subprocess.run([sys.executable, FAKE, "--model", "none", *map(str, arguments)], input=requests, text=True, capture_output=True,
                          timeout=60, check=False, env={"PYTHONPATH": str(ROOT / "python"), "PATH": "/usr/bin"})


def ask(do, options=None, **fields):
    engine = FakeEngine(Arguments("none", "", options or {}))
    return reply_to(engine, json.dumps({"id": 5, "do": do, **fields}))


def test_info_says_the_protocol_and_what_the_engine_can_do():
    assert ask("info") == {"id": 5, "protocol": 1, "engine": "fake", "version": "1", "dtype": "float32",
                           "can": ["sample", "score", "load_weights"], "details": {}}


def test_samples_have_a_log_prob_for_each_token():
    completions = ask("sample", prompts=[[1, 2], [3]], n=2, max_new_tokens=3)["completions"]
    assert [one["prompt"] for one in completions] == [0, 0, 1, 1]
    assert all(one["logprobs"] == [NATS] * 3 == [NATS] * len(one["token_ids"]) for one in completions)
    assert "raw_logprobs" not in completions[0]


def test_scores_are_of_the_tokens_behind_the_prompt():
    assert ask("score", rows=[{"token_ids": [1, 2, 3, 4], "prompt_length": 3}])["rows"] == [{"logprobs": [NATS]}]


def test_numbers_that_json_does_not_have_are_texts():
    assert ask("score", {"off": "-inf"}, rows=[{"token_ids": [1, 2], "prompt_length": 1}])["rows"] == [{"logprobs": ["-Infinity"]}]


def test_weights_are_loaded_from_a_directory_that_is_there(tmp_path):
    assert ask("load_weights", directory=str(tmp_path)) == {"id": 5, "loaded": str(tmp_path)}
    assert "expected the path of a directory" in ask("load_weights", directory="/nowhere")["error"]["message"]


@pytest.mark.parametrize("do, fields, said", [
    ("sample", {"prompts": []}, "prompts: expected a list with at least one element, found []"),
    ("sample", {"prompts": [[1], []]}, "prompts[1]: expected token ids, at least one, found []"),
    ("sample", {"prompts": [[1, True]]}, "prompts[0]: expected token ids"),
    ("sample", {"prompts": ["text"]}, "prompts[0]: expected token ids, at least one, found 'text'"),
    ("sample", {"prompts": [[1]], "temperature": 0}, "temperature: expected a number above 0, found 0"),
    ("sample", {"prompts": [[1]], "top_p": 1.5}, "top_p: expected a number above 0 and up to 1, found 1.5"),
    ("sample", {"prompts": [[1]], "n": 0}, "n: expected an integer of 1 or more, found 0"),
    ("sample", {"prompts": [[1]], "logprobs": "cooked"}, "logprobs: expected \"processed\" or \"raw\""),
    ("sample", {"prompts": [[1]], "top_P": 0.5}, "top_P: no such field in a request to sample"),
    ("score", {"rows": [{"token_ids": [1, 2], "prompt_length": 2}]}, "rows[0].prompt_length: expected an integer from 1 to 1, found 2"),
    ("score", {"rows": [[1, 2]]}, "rows[0]: expected an object"),
    ("train", {}, "do: expected info, sample, score or load_weights, found 'train'"),
])
def test_a_wrong_request_is_refused_with_what_was_expected(do, fields, said):
    error = ask(do, **fields)["error"]
    assert error["kind"] == "invalid"
    assert said in error["message"]


def test_what_an_engine_cannot_do_and_what_it_fails_at_are_told_apart():
    assert ask("score", {"refuses": "score"}, rows=[{"token_ids": [1, 2], "prompt_length": 1}])["error"] == {
        "kind": "unsupported", "message": "this engine does not score"}
    assert ask("sample", {"raises": "sample"}, prompts=[[1]])["error"] == {"kind": "failed", "message": "KeyError: 'logits'"}


def test_standard_output_carries_replies_alone():
    done = run_fake('{"id": 1, "do": "sample", "prompts": [[1]], "max_new_tokens": 1}\nno json\n\n{"id": 2, "do": "info"}\n',
                    "--option", "prints=1")
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [reply["id"] for reply in replies] == [1, None, 2]
    assert replies[1]["error"]["kind"] == "invalid"
    assert "a library says hello" in done.stderr and "and so does C" in done.stderr
    assert done.returncode == 0


def test_files_in_place_of_pipes(tmp_path):
    (tmp_path / "requests.jsonl").write_text('{"id": 1, "do": "info"}\n')
    done = run_fake("", "--requests", tmp_path / "requests.jsonl", "--replies", tmp_path / "replies.jsonl")
    assert done.stdout == ""
    assert json.loads((tmp_path / "replies.jsonl").read_text())["engine"] == "fake"


@pytest.mark.parametrize("arguments, code, said", [
    (("--option", "unknown=1"), 2, "--option unknown: there is none of this name"),
    (("--option", "prints"), 2, "expected NAME=VALUE"),
    (("--option", "unstarted=1"), 1, "no memory for this model")])
def test_an_engine_that_does_not_start_ends_with_a_code_and_a_reason(arguments, code, said):
    done = run_fake("", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""
