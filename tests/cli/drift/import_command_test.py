"""`tandem drift import` as a user meets it, on the fixtures of every framework."""
import json
import os
import pathlib
import shutil

import pytest

from forked_tandem import forked_tandem

FOREIGN = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "tests/testdata/foreign"


def run(*arguments):
    return forked_tandem("drift", *arguments)


def imported(tmp_path, source, path, *more):
    out = tmp_path / "records.jsonl"
    return run("import", "--from", source, path, "--out", out, *more), out


@pytest.mark.parametrize("source, path, rows", [
    ("nemo-rl", "nemo-rl", 3), ("prime-rl", "prime-rl/token_exports", 3), ("slime", "slime/rollout_3.json", 2),
    ("slime", "miles", 2), ("open-instruct", "open-instruct", 2), ("vllm", "vllm/completions.jsonl", 1),
    ("vllm", "vllm/generate.jsonl", 1), ("vllm", "vllm/request_output.jsonl", 2), ("sglang", "sglang/generate.jsonl", 2),
    ("llama.cpp", "llama.cpp/completion.jsonl", 1), ("openai", "openai/chat.jsonl", 1), ("jsonl", "jsonl/nan.jsonl", 1)])
def test_what_comes_out_can_be_checked(tmp_path, source, path, rows):
    done, out = imported(tmp_path, source, FOREIGN / path)
    assert done.returncode == 0, done.stderr
    assert f"{out}: {rows} row" in done.stdout
    assert done.stdout.endswith(f"Next: tandem drift why {out}\n")
    checked = run("check", out, "--json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["rows"] == rows


def test_both_sides_of_nemo_rl_lead_to_a_verdict(tmp_path):
    done, out = imported(tmp_path, "nemo-rl", FOREIGN / "nemo-rl")
    assert done.returncode == 0, done.stderr
    assert "proximal_logprobs" in done.stdout
    assert "left out 1 file for this reason" in done.stdout
    assert run("why", out).returncode == 0


def test_a_directory_gets_records_jsonl_and_json_says_the_same(tmp_path):
    directory = tmp_path / "imported"
    done = run("import", "--from", "prime-rl", FOREIGN / "prime-rl/token_exports", "--out", f"{directory}/", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["path"] == str(directory / "records.jsonl")
    assert (report["rows"], report["tokens"], report["drawn_tokens"], report["files"]) == (3, 10, 6, 2)
    assert "no STABLE marker" in report["notes"][0]
    header = json.loads((directory / "records.jsonl").read_text().splitlines()[0])
    assert header["proximal"]["policy"] == "proximal"


def test_maps_and_claims_reach_the_records(tmp_path):
    done, out = imported(tmp_path, "jsonl", FOREIGN / "jsonl/rows.jsonl", "--map", "prompt_ids=q", "--map", "completion_ids=a",
                         "--map", "behaviour_logprobs=lp.sampler", "--claim", "behaviour.temperature=0.7")
    assert done.returncode == 0, done.stderr
    header, row = map(json.loads, out.read_text().splitlines())
    assert header["behaviour"]["temperature"] == 0.7
    assert header["columns"]["behaviour_logprobs"]["from"] == "lp.sampler"
    assert row["token_ids"] == [1, 11, 12, 13, 2]


def test_several_files_make_one_records_file_in_the_order_given(tmp_path):
    steps = [FOREIGN / f"nemo-rl/train_data_step{step}.jsonl" for step in (4, 3)]
    out = tmp_path / "records.jsonl"
    done = run("import", "--from", "nemo-rl", *steps, "--out", out)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["step"] for line in out.read_text().splitlines()[1:]] == [4, 3, 3]


@pytest.mark.parametrize("arguments, said", [
    (["--from", "nemo"], "--from nemo: expected one of nemo-rl, prime-rl, verl, "),
    (["--from", "vllm", "--map", "token_ids=x"], "belongs to --from jsonl"),
    (["--from", "jsonl", "--map", "token_id=x"], "did you mean token_ids?"),
    (["--from", "vllm", "--claim", "behaviour.temp=1"], "there is no field behaviour.temp to claim"),
    ([], "--from"),
])
def test_wrong_flags_are_refused_before_a_file_is_read(tmp_path, arguments, said):
    done = run("import", *arguments, tmp_path / "none.jsonl", "--out", tmp_path / "out.jsonl")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_out_is_asked_for():
    done = run("import", "--from", "vllm", "answers.jsonl")
    assert done.returncode == 2
    assert "--out" in done.stderr


@pytest.mark.parametrize("source, path, said", [
    ("nemo-rl", "none.jsonl", "none.jsonl: no such file or directory"),
    ("nemo-rl", "prime-rl/token_exports/step_2/rank_0.jsonl", "it looks like prime-rl: --from prime-rl"),
    ("verl", "verl/1.jsonl", "python/tandem_rl/export/verl.py"),
    ("verl", "verl/gen_batch.dp", "python/tandem_rl/export/verl.py"),
    ("slime", "slime/rollout_3.pt", "python/tandem_rl/export/slime.py"),
    ("skyrl", "skyrl", "python/tandem_rl/export/skyrl.py"),
    ("areal", "areal", "python/tandem_rl/export/areal_hook.py"),
    ("trl", "trl/completions_00001.parquet", "python/tandem_rl/export/trl_callback.py"),
    ("vllm", "vllm/texts_only.jsonl", 'ask with "return_token_ids": true'),
    ("llama.cpp", "llama.cpp/llama_cpp_python.json", "ask llama.cpp's own server"),
])
def test_what_cannot_be_imported_says_what_to_do_instead(tmp_path, source, path, said):
    done, out = imported(tmp_path, source, FOREIGN / path)
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    assert not out.exists()


def test_the_exporters_and_hooks_that_messages_name_are_there():
    source = pathlib.Path(os.environ["TANDEM_SOURCE"])
    for name in ("verl", "slime", "skyrl", "verl_hook", "areal_hook", "trl_callback"):
        assert (source / f"python/tandem_rl/export/{name}.py").is_file(), name


def test_out_replaces_records_and_no_other_file(tmp_path):
    source = tmp_path / "rows.jsonl"
    shutil.copy(FOREIGN / "jsonl/nan.jsonl", source)
    onto_itself = run("import", "--from", "jsonl", source, "--out", source)
    assert onto_itself.returncode == 2
    assert "exists and is no records file" in onto_itself.stderr
    assert source.read_bytes() == (FOREIGN / "jsonl/nan.jsonl").read_bytes()
    for _ in range(2):
        done, _ = imported(tmp_path, "jsonl", source)
        assert done.returncode == 0, done.stderr


def test_help_lists_every_framework():
    done = run("import", "--help")
    assert done.returncode == 0
    for name in ("nemo-rl", "prime-rl", "verl", "slime", "skyrl", "areal", "trl", "open-instruct", "vllm", "sglang", "llama.cpp",
                 "openai", "jsonl"):
        assert f"\n  {name} " in done.stdout, done.stdout
