"""`tandem sft`, `train-preferences`, `train-reward-model` and `score-rewards`: ranks, resuming, the cache, files and errors."""
import json
import os
import pathlib
import signal
import socket
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from forked_tandem import forked_tandem
from waiting import wait_until

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
PAIRS = [{"prompt": f"what is {i} + 1?", "chosen": f"{i + 1}.", "rejected": f"{i}, I think"} for i in range(24)]
EXAMPLES = [{"prompt": f"what is {i} + 1?", "answer": str(i + 1)} for i in range(24)]
STEPS = [{"prompt": f"what is {i} + 1?", "steps": ["add 1", f"it is {i + i % 2}"], "labels": [1, i % 2]} for i in range(24)]


def tandem(*arguments, text=None, environment=None):
    env = {**os.environ, **(environment or {})}
    if "--ranks" in arguments:  # the ranks get the command line that the kernel has of the process
        return subprocess.run([TANDEM, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=120, check=False, env=env)
    return forked_tandem(*arguments, text=text, env=env)


def succeeds(*arguments, **more):
    done = tandem(*arguments, **more)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    text = folder / "text.txt"
    text.write_text("what is 1 + 2? 3. what is 4 + 5? 9.\n" * 40)
    succeeds("init", "--out", folder / "model", "--text", text, "--hidden", 32, "--layers", 2, "--heads", 2, "--kv-heads", 1,
             "--intermediate", 48, "--vocab", 280, "--context", 128)
    return folder / "model"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def metrics(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time_s"} for line in lines]


COMMANDS = {"sft": (["sft"], EXAMPLES), "dpo": (["train-preferences", "--loss", "dpo"], PAIRS),
            "kto": (["train-preferences", "--loss", "kto"], PAIRS), "orpo": (["train-preferences", "--loss", "orpo"], PAIRS),
            "rm": (["train-reward-model", "--heads", 2], PAIRS), "prm": (["train-reward-model", "--process"], STEPS)}


def training(kind, model, folder, name, *more):
    command, rows = COMMANDS[kind]
    data = write(folder / "data.jsonl", rows)
    return [*command, "--model", model, "--data", data, "--out", folder / name, "--batch", 6, "--lr", "1e-3", "--warmup", 1,
            "--held-out", "0.25", *more]


@pytest.mark.parametrize("kind", COMMANDS)
def test_two_ranks_make_the_updates_of_one(model, tmp_path, kind):
    succeeds(*training(kind, model, tmp_path, "one", "--epochs", 2))
    succeeds(*training(kind, model, tmp_path, "two", "--epochs", 2, "--ranks", 2))
    succeeds(*training(kind, model, tmp_path, "sharded", "--epochs", 2, "--ranks", 2, "--shard-parameters"))
    one = metrics(tmp_path / "one")
    # 18 of 24 rows are trained on, 6 to an update, twice; a pair is two labelled completions.
    assert len(one) == (12 if kind == "kto" else 6) and "held_out/loss" in one[-1]
    for other in ("two", "sharded"):
        for mine, theirs in zip(one, metrics(tmp_path / other), strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in mine.items():
                if kind == "kto" and mine["step"] == 1 and name == "rewards/accuracies":
                    continue  # the policy is the reference policy still: rewards and z0 are 0 but for rounding, which decides what is larger
                assert theirs[name] == pytest.approx(value, rel=2e-4, abs=2e-5), (other, mine["step"], name)
    assert one[-1]["loss"] < one[0]["loss"]


def test_a_launcher_may_start_the_ranks(model, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [subprocess.Popen([TANDEM, *map(str, training("sft", model, tmp_path, "out"))], text=True, stderr=subprocess.PIPE,
                              env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                                   "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for rank in (0, 1)]
    for rank in ranks:
        _, errors = rank.communicate(timeout=100)
        assert rank.returncode == 0, errors
    assert len(metrics(tmp_path / "out")) == 3
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("kind, ranks", [("sft", 1), ("dpo", 2), ("rm", 1)])
def test_a_signal_saves_and_a_resumed_run_ends_with_the_same_bits(model, tmp_path, kind, ranks):
    more = ["--epochs", 30, "--ranks", ranks]
    succeeds(*training(kind, model, tmp_path, "whole", *more))
    stopped = tmp_path / "stopped"
    command = [str(word) for word in training(kind, model, tmp_path, "stopped", *more)]
    process = subprocess.Popen([TANDEM, *command], text=True, stderr=subprocess.PIPE)
    path = stopped / "metrics.jsonl"
    wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= 3, "no updates")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.fail("the run ended before the signal came: make it longer")
    assert process.returncode == 130, errors
    assert "go on with --resume" in errors and (stopped / "checkpoints" / "LATEST").exists()
    again = tandem(*command)
    assert again.returncode == 2 and "holds a run that did not end" in again.stderr
    other = tandem(*command, "--resume", "--weight-decay", "0.1")
    assert other.returncode == 3 and "`weight_decay: 0`, not `weight_decay: 0.1`" in other.stderr
    succeeds(*command, "--resume")
    assert metrics(stopped) == metrics(tmp_path / "whole")
    assert (stopped / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_two_trainings_do_not_write_to_one_directory(model, tmp_path):
    command = [str(word) for word in training("sft", model, tmp_path, "out", "--epochs", 3000)]
    with subprocess.Popen([TANDEM, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        path = tmp_path / "out" / "metrics.jsonl"
        wait_until(lambda: path.exists() and path.read_text(), "no updates")
        second = tandem(*command)
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=60) == 130
    assert second.returncode == 2 and "another process writes there" in second.stderr


def test_reference_logprobs_are_cached_and_only_used_where_they_fit(model, tmp_path):
    cache = tmp_path / "cache.safetensors"
    named = ["--reference-cache", cache]
    first = succeeds(*training("dpo", model, tmp_path, "a", *named))
    assert "reference log-probs of" not in first.stderr
    second = succeeds(*training("dpo", model, tmp_path, "b", *named))
    assert f"reference log-probs of {cache}" in second.stderr
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    refused = tandem(*training("dpo", model, tmp_path, "c", *named, "--dtype", "bf16"))
    assert refused.returncode == 3
    assert "another dtype (fp32, now bf16): name another --reference-cache" in refused.stderr
    # Without a name the file is the run's own, and is made anew.
    out = tmp_path / "d"
    out.mkdir()
    cache.rename(out / "reference_logprobs.safetensors")
    succeeds(*training("dpo", model, tmp_path, "d", "--dtype", "bf16"))
    # Another reference policy gives other numbers.
    succeeds(*training("dpo", model, tmp_path, "e", "--reference", tmp_path / "a"))
    assert metrics(tmp_path / "e")[0]["loss"] != metrics(tmp_path / "a")[0]["loss"]
    assert metrics(tmp_path / "a")[0]["loss"] == pytest.approx(0.693147, abs=1e-5)


def test_a_resumed_run_has_the_reference_that_it_was_started_with(model, tmp_path):
    succeeds(*training("sft", model, tmp_path, "other"))
    command = training("dpo", model, tmp_path, "out", "--epochs", 3000, "--checkpoint-every", 1)
    command = [str(word) for word in [*command, "--reference", tmp_path / "other"]]
    with subprocess.Popen([TANDEM, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        path = tmp_path / "out" / "checkpoints" / "LATEST"
        wait_until(path.exists, "no checkpoint")
        process.kill()
    forgotten = tandem(*command[:-2], "--resume")
    assert forgotten.returncode == 3 and "resume with the --reference that the run had" in forgotten.stderr
    (tmp_path / "out" / "reference_logprobs.safetensors").unlink()
    forgotten = tandem(*command[:-2], "--resume")
    assert forgotten.returncode == 3 and f"`reference: {tmp_path / 'other'}`, not `reference: `" in forgotten.stderr


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_parquet_gives_the_numbers_of_json_lines(model, tmp_path, kind):
    command, rows = COMMANDS[kind]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    lines = write(tmp_path / "data.jsonl", rows)
    for name, data in (("a", lines), ("b", tmp_path / "data.parquet")):
        succeeds(*command, "--model", model, "--data", data, "--out", tmp_path / name, "--batch", 6)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def test_a_reward_model_leaves_a_report(model, tmp_path):
    done = succeeds(*training("rm", model, tmp_path, "out", "--epochs", 2))
    out = tmp_path / "out"
    assert "accuracy" in done.stdout and "length bias" in done.stdout
    report = json.loads((out / "reward_model.json").read_text())
    assert report["kind"] == "outcome" and report["num_heads"] == 2 and len(report["accuracy_of_heads"]) == 2
    assert report["held_out"]["num"] == 6 and len(report["held_out"]["bins"]) == 10
    assert sum(row["num"] for row in report["held_out"]["bins"]) == 6
    page = (out / "reward_model.html").read_text()
    assert "reward model" in page and "https:" not in page.split("<script")[0]
    prompts = write(tmp_path / "lines.jsonl", [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in PAIRS[:3]])
    answers = [json.loads(line) for line in succeeds("score-rewards", "--model", out, "--data", prompts).stdout.splitlines()]
    assert [len(answer["rewards"]) for answer in answers] == [2, 2, 2]


@pytest.mark.parametrize("command, rows, flags, code, said", [
    ("train-preferences", [{**PAIRS[0], "rejected": PAIRS[0]["chosen"]}], [], 3, "data.jsonl:1: "),
    ("train-preferences", [PAIRS[0], {"prompt": "a", "chosen": "b"}], [], 3, "data.jsonl:2: "),
    ("train-preferences", [{"prompt": "a", "completion": "b", "label": True}], [], 3, "--loss kto reads labels"),
    ("train-preferences", [{"prompt": "a", "completion": "b", "label": True}] * 2, ["--loss", "kto"], 3, "all 2 completions have the same label"),
    ("train-preferences", PAIRS, ["--loss", "ipo", "--label-smoothing", "0.1"], 2, "label_smoothing is 0.1"),
    ("train-preferences", PAIRS, ["--loss", "dpoo"], 2, "'dpoo' is not one of dpo"),
    ("train-preferences", PAIRS, ["--loss", "dpo", "--simpo-gamma", "1"], 2, "simpo_gamma is 1, but only simpo has it"),
    ("train-preferences", PAIRS, ["--loss", "orpo", "--cpo-alpha", "2"], 2, "cpo_alpha is 2, but only cpo has it"),
    ("train-preferences", PAIRS, ["--loss", "simpo", "--reference", "/no/such"], 2, "--reference: this loss has no reference policy"),
    ("train-preferences", PAIRS, ["--loss", "orpo", "--reference-cache", "x"], 2, "--reference-cache: this loss has no reference policy"),
    ("train-preferences", PAIRS, ["--beta2", "1"], 2, "must be in [0, 1)"),
    ("train-preferences", PAIRS, ["--held-out", "1"], 2, "must be in [0, 1)"),
    ("train-preferences", PAIRS, ["--threads", "-1"], 2, "--threads: is -1, want 0 or more"),
    ("train-preferences", [{**PAIRS[0], "margin": float("nan")}], [], 3, "NaN and Infinity are no numbers of JSON"),
    ("train-preferences", PAIRS, ["--held-out-data", os.path.join(os.environ["TANDEM_SOURCE"], "cmake")], 3,
     "cmake: the directory has no data files"),
    ("train-preferences", PAIRS, ["--lr", "1e39", "--warmup", "0", "--max-updates", "1"], 8, "a weight after update 1, which is not finite"),
    ("sft", EXAMPLES, ["--lr", "1e39", "--warmup", "0", "--max-updates", "1"], 8, "a weight after update 1, which is not finite"),
    ("train-preferences", PAIRS, ["--resume"], 2, "holds no checkpoint to resume from"),
    ("train-reward-model", PAIRS, ["--held-out", "0"], 2, "leaves no row of"),
    ("train-reward-model", [{"prompt": "a", "completion": "b", "label": True}], [], 3, "--process reads labelled steps"),
    ("train-reward-model", [{"prompt": "a", "steps": ["b", "c"]}], ["--process"], 3, 'data.jsonl:1: "labels" is missing'),
    ("train-reward-model", [{"prompt": "a", "steps": ["b", "c"], "labels": [1]}], ["--process"], 3, "data.jsonl:1: 1 labels for 2 steps"),
    ("train-reward-model", [{"prompt": "a", "steps": ["b"], "labels": [2]}], ["--process"], 3, 'data.jsonl:1: "labels"[0] is 2'),
    ("train-reward-model", STEPS, ["--process", "--heads", "2"], 2, "--process has one head"),
    ("sft", EXAMPLES, ["--batch", "0"], 2, "must be >= 1"),
    ("sft", EXAMPLES, ["--held-out-data", "/no/such.jsonl"], 3, "/no/such.jsonl"),
    ("sft", EXAMPLES, ["--device", "cuda"], 3, "CUDA"),
])
def test_a_mistake_is_named_with_what_to_do(model, tmp_path, command, rows, flags, code, said):
    data = write(tmp_path / "data.jsonl", rows)
    done = tandem(command, "--model", model, "--data", data, "--out", tmp_path / "out", *flags)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_head_of_another_width_and_a_reward_model_in_place_of_a_language_model_are_refused(model, tmp_path):
    succeeds(*training("rm", model, tmp_path, "rm"))
    done = tandem(*training("prm", tmp_path / "rm", tmp_path, "a"))
    assert done.returncode == 3 and "set --heads to what the model has" in done.stderr
    done = tandem(*training("sft", tmp_path / "rm", tmp_path, "b"))
    assert done.returncode == 3 and "is a reward model" in done.stderr
    done = tandem("score-rewards", "--model", model, text='{"prompt": "a", "completion": "b"}\n')
    assert done.returncode == 3 and "it is no reward model" in done.stderr
    done = tandem("score-rewards", "--model", tmp_path / "rm", text='{"prompt": "a", "completion": "b"}\n{"prompt": 1}\n')
    assert done.returncode == 3 and len(done.stdout.splitlines()) == 1 and 'standard input:2: want "prompt"' in done.stderr
    again = tandem(*training("rm", model, tmp_path, "rm"))
    assert again.returncode == 2 and "holds a model already" in again.stderr


def test_a_bias_of_a_process_reward_model_is_refused_and_not_dropped(model, tmp_path):
    succeeds(*training("prm", model, tmp_path, "prm"))
    path = tmp_path / "prm" / "model.safetensors"
    tensors = load_file(path)
    assert tensors["score.bias"].tolist() == [0]
    save_file({**tensors, "score.bias": np.full(1, 3, np.float32)}, path)
    done = tandem(*training("prm", tmp_path / "prm", tmp_path, "again"))
    assert done.returncode == 3 and "score.bias is not zero; a head here has no bias" in done.stderr


def test_a_mean_over_no_example_is_left_out(model, tmp_path):
    rows = [{"prompt": f"what is {i}?", "completion": str(i), "label": i < 4} for i in range(8)]
    data = write(tmp_path / "labels.jsonl", rows)
    succeeds("train-preferences", "--loss", "kto", "--model", model, "--data", data, "--out", tmp_path / "out", "--batch", 4, "--shuffle", "false")
    first, second = metrics(tmp_path / "out")
    assert "logps/chosen" in first and "logps/rejected" not in first
    assert "logps/rejected" in second and "logps/chosen" not in second and "rewards/accuracies" in second
