"""`tandem drift compare` as a user meets it: Tandem against transformers on a real model, and against an engine without a
model, whose every fault is known."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
MODEL = SOURCE / "models/smollm2-135m-instruct"
FAKE = SOURCE / "python/tests/engines/fake_engine.py"


def compare(folder, *arguments, timeout=500):
    return subprocess.run([TANDEM, "drift", "compare", "--model", MODEL, "--out", folder / "compare.jsonl", *map(str, arguments)],
                          capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})


def read(folder):
    header, *rows = [json.loads(line) for line in (folder / "compare.jsonl").read_text(encoding="utf-8").splitlines()]
    return header, rows


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("The capital of France is\n\n" + json.dumps({"token_ids": [1, 4093, 198]}) + "\n"
                    + json.dumps({"messages": [{"role": "user", "content": "Say yes."}]}) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def fake(tmp_path, prompts):
    """Compares two engines without a model, named vllm; both run in this interpreter whatever module is asked for."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {FAKE} "$@"\n', encoding="utf-8")
    python.chmod(0o755)

    def run(a="vllm", b="vllm", *arguments):
        return compare(tmp_path, "--a", a, "--b", b, "--python-a", python, "--python-b", python, "--prompts", prompts,
                       "--max-new-tokens", 4, "--records-only", *arguments)
    return run


def test_tandem_against_transformers_agrees_to_the_last_digits(tmp_path, prompts):
    done = compare(tmp_path, "--a", "tandem:fp32", "--b", "transformers:fp32", "--prompts", prompts, "--max-new-tokens", 6,
                   "--group-size", 2, "--temperature", 0.8, "--records-only", "--json", "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    header, rows = read(tmp_path)
    assert header["behaviour"]["engine"] == "tandem" and header["proximal"]["engine"] == "transformers"
    assert header["behaviour"]["dtype"] == header["proximal"]["dtype"] == "float32"
    assert header["behaviour"]["temperature"] == header["proximal"]["temperature"] == 0.8
    assert len(rows) == 6
    for row in rows:
        for at in range(row["prompt_length"], len(row["token_ids"])):
            assert abs(row["behaviour_logprobs"][at] - row["proximal_logprobs"][at]) < 1e-3
            assert abs(row["behaviour_logprobs"][at] - row["behaviour_score_logprobs"][at]) < 1e-3
            assert abs(row["behaviour_entropy"][at] - row["proximal_entropy"][at]) < 1e-2
    assert rows[2]["token_ids"][:3] == [1, 4093, 198] and rows[4]["token_ids"][0] == 1
    assert json.loads(done.stdout)["training_effect"]["num_tokens"] == sum(len(row["token_ids"]) - row["prompt_length"] for row in rows)
    assert "compare.jsonl" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_transformers_samples_and_tandem_scores(tmp_path, prompts):
    done = compare(tmp_path, "--a", "transformers:fp32:eager", "--b", "tandem:fp32", "--prompts", prompts, "--max-new-tokens", 4,
                   "--logprobs", "raw", "--temperature", 0.7, "--records-only")
    assert done.returncode == 0, done.stderr
    header, rows = read(tmp_path)
    assert header["behaviour"]["logprobs"] == "raw"
    gaps = [abs(row["behaviour_logprobs"][at] - row["proximal_logprobs"][at]) for row in rows
            for at in range(row["prompt_length"], len(row["token_ids"]))]
    assert max(gaps) > 0.02  # the raw log-prob is not that of the distribution at 0.7
    assert all("behaviour_entropy" not in row for row in rows)


def test_two_engines_behind_the_protocol_and_every_column(tmp_path, fake):
    done = fake("vllm", "vllm:off=0.25")
    assert done.returncode == 0, done.stderr
    header, rows = read(tmp_path)
    assert (header["behaviour"]["engine"], header["behaviour"]["engine_version"]) == ("fake", "1")
    drawn = rows[0]["prompt_length"]
    assert rows[0]["proximal_logprobs"][drawn] - rows[0]["behaviour_logprobs"][drawn] == pytest.approx(0.25)
    assert rows[0]["behaviour_score_logprobs"][drawn] == rows[0]["behaviour_logprobs"][drawn]
    assert rows[0]["behaviour_logprobs"][:drawn] == [None] * drawn


def test_libraries_that_print_do_not_disturb_the_replies(tmp_path, fake):
    done = fake("vllm:prints=1")
    assert done.returncode == 0, done.stderr
    assert "and so does C" in (tmp_path / "compare.jsonl.a.log").read_text(encoding="utf-8")


def test_an_engine_that_cannot_score_what_it_drew_leaves_the_column_out(tmp_path, fake):
    done = fake("vllm:refuses=score")
    assert done.returncode == 0, done.stderr
    assert "no behaviour_score_logprobs: engine vllm:refuses=score: this engine does not score" in done.stderr
    assert all("behaviour_score_logprobs" not in row for row in read(tmp_path)[1])


def test_steps_of_weights_become_versions_and_steps(tmp_path, fake):
    done = fake("vllm", "vllm", "--steps-of-weights", MODEL)
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path)[1]
    assert [row["step"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert all(row["proximal_version"] == row["step"] for row in rows)


def test_one_side_may_have_weights_of_its_own(tmp_path, fake):
    other = tmp_path / "other"
    other.mkdir()
    for file in MODEL.iterdir():
        (other / file.name).symlink_to(file)
    done = fake("vllm", f"vllm:model={other}")
    assert done.returncode == 0, done.stderr
    header = read(tmp_path)[0]
    assert header["proximal"]["weights"] == str(other) and "weights" not in header["behaviour"]


@pytest.mark.parametrize("a, b, code, said", [
    ("vllm:dies=1", "vllm", 9, "ended with exit code 7"),
    ("vllm:dies=1", "vllm", 9, "the last words of the engine"),
    ("vllm:unstarted=1", "vllm", 9, "no memory for this model"),
    ("vllm", "vllm:refuses=score", 3, "this engine does not score"),
    ("vllm:raises=sample", "vllm", 1, "KeyError: 'logits'"),
    ("vlllm", "vllm", 2, "there is no engine `vlllm`"),
    ("vllm", "vllm:model=/nowhere", 3, "/nowhere"),
    ("tandem:q8_0", "vllm", 2, "is not a dtype of it")])
def test_what_goes_wrong_has_an_exit_code_and_a_reason(fake, a, b, code, said):
    done = fake(a, b)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("flag", ["--temperature", "--max-new-tokens", "--group-size", "--referee-seconds"])
def test_a_number_that_must_be_above_zero_says_so_in_a_few_words(fake, flag):
    done = fake("vllm", "vllm", flag, -1)
    assert done.returncode == 2
    assert f"{flag}: is -1, want above 0" in done.stderr and len(done.stderr) < 200


@pytest.mark.parametrize("more, code, said", [
    (["--records-only"], 2, "--records-only excludes --weights"), ([], 3, "/nowhere: expected a model directory")])
def test_a_second_set_of_weights_is_checked_before_the_engines_run(tmp_path, prompts, more, code, said):
    done = compare(tmp_path, "--a", "tandem", "--b", "tandem", "--prompts", prompts, "--weights", "/nowhere", *more)
    assert done.returncode == code
    assert said in done.stderr and "samples" not in done.stderr


def test_a_second_set_of_weights_and_the_time_of_the_referee_are_those_of_drift_why(tmp_path, prompts):
    done = compare(tmp_path, "--a", "tandem:fp32", "--b", "tandem:fp32", "--prompts", prompts, "--max-new-tokens", 4, "--json",
                   "--weights", MODEL, "--referee-seconds", 0.5)
    assert done.returncode == 0, done.stderr
    again = subprocess.run([TANDEM, "drift", "why", tmp_path / "compare.jsonl", "--model", MODEL, "--weights", MODEL, "--json",
                            "--referee-seconds", "0.5"], capture_output=True, text=True, timeout=500, check=True)
    assert json.loads(done.stdout)["referee"]["weights"] == str(MODEL)
    assert json.loads(done.stdout)["verdict"] == json.loads(again.stdout)["verdict"]


@pytest.mark.parametrize("engine", ["transformers", "vllm", "llama_cpp"])
def test_the_message_about_an_unknown_part_lists_every_option_of_the_adapter(fake, engine):
    adapter = (SOURCE / f"python/tandem_rl/engines/{engine}.py").read_text(encoding="utf-8")
    options = re.findall(r'"(\w+)"', re.search(r"started\.allow\((.*)\)", adapter).group(1))
    done = fake(f"{engine}:nope")
    assert done.returncode == 2
    listed = done.stderr.split("may stand ")[1]
    assert options and all(f", {name}=" in listed or (name == "attn" and ", eager, sdpa" in listed) for name in options)


@pytest.mark.parametrize("flag", ["--html", "--json-out"])
def test_a_folder_that_is_not_there_is_known_before_the_engines_run(tmp_path, fake, flag):
    done = fake("vllm", "vllm", flag, tmp_path / "none" / "out")
    assert done.returncode == 7
    assert f"there is no folder {tmp_path / 'none'}; make it first" in done.stderr
    assert not (tmp_path / "compare.jsonl.a.log").exists()


def test_records_into_a_folder_that_is_not_there_are_a_fault_of_storage(tmp_path, prompts):
    done = compare(tmp_path / "none", "--a", "tandem", "--b", "tandem", "--prompts", prompts)
    assert done.returncode == 7
    assert f"there is no folder {tmp_path / 'none'}; make it first" in done.stderr


def test_an_engine_that_is_not_installed_says_how_to_install_it(tmp_path, prompts):
    done = compare(tmp_path, "--a", "vllm", "--b", "tandem", "--python-a", tmp_path / "nowhere", "--prompts", prompts)
    assert done.returncode == 2
    assert "deploy/setup/install.sh --engines" in done.stderr


@pytest.mark.parametrize("line, said", [
    ('{"prompt": 3}', "prompts.txt:1: "), ('{"prompt"', "prompts.txt:1: expected a JSON object"), ("", "there is no prompt in it")])
def test_prompts_that_cannot_be_read_name_their_line(tmp_path, prompts, line, said):
    prompts.write_text(line + "\n", encoding="utf-8")
    done = compare(tmp_path, "--a", "tandem", "--b", "tandem", "--prompts", prompts)
    assert done.returncode == 3
    assert said in done.stderr


@pytest.mark.parametrize("make, found", [
    (lambda path: path.mkdir(), "found a directory"), (lambda path: path.write_bytes(b""), "found an empty file"),
    (lambda path: path.write_bytes(b"\n \n"), "found empty lines only"), (lambda path: None, "found No such file")])
def test_prompts_that_are_no_file_of_prompts_say_what_is_expected(tmp_path, make, found):
    path = tmp_path / "theirs"
    make(path)
    done = compare(tmp_path, "--a", "tandem", "--b", "tandem", "--prompts", path)
    assert done.returncode == 3
    assert f"--prompts {path}: " in done.stderr and found in done.stderr
    assert "expected a file of prompts, a line each: text, or JSON with prompt, messages or token_ids" in done.stderr
