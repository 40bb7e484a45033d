"""`tandem run` on a pipeline: kills at and inside every stage, changed options, references, a stage that fails."""
import json
import os
import pathlib
import signal
import subprocess

import pytest
import yaml

from waiting import wait_until

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
STAGES = ["warm", "pairs", "rm", "dpo", "ppo"]


def tandem(*arguments, timeout=200):
    return subprocess.run([TANDEM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a random model and sums to learn."""
    folder = tmp_path_factory.mktemp("place")
    sums = [(a, b) for a in range(5) for b in range(4)]
    (folder / "text.txt").write_text("".join(f"{a} + {b} = {a + b}\n" for a, b in sums) * 20)
    (folder / "sums.jsonl").write_text("".join(json.dumps({"prompt": f"{a} + {b} =", "answer": f" {a + b}"}) + "\n" for a, b in sums))
    done = tandem("init", "--out", folder / "base", "--text", folder / "text.txt", "--hidden", 32, "--layers", 2, "--heads", 2,
                  "--kv-heads", 1, "--intermediate", 64, "--vocab", 280, "--context", 64)
    assert done.returncode == 0, done.stderr
    (folder / "base" / "chat_template.jinja").unlink()  # sums as they are, in every stage
    return folder


def pipeline(place, out, **changes):
    """Five stages of some seconds together; `changes` are keyed by stage and go over its options."""
    sums = str(place / "sums.jsonl")
    supervised = {"batch": 5, "lr": 1e-3, "warmup": 1, "checkpoint-every": 3}
    rl = {"server": {"engine": {"dtype": "fp32", "kv_capacity_tokens": 4096}},
          "trainer": {"model": "${stages.dpo.model}", "deterministic": True, "steps": 4, "prompts_per_step": 2,
                      "completions_per_prompt": 2, "sampling": {"max_new_tokens": 6}, "data": {"train": sums, "chat": False},
                      "reward": {"weights": {"number_answer": 1}}, "preset": "ppo",
                      "critic": {"model": "${stages.rm.model}"}, "checkpoint": {"every": 1},
                      "optimizer": {"learning_rate": 1e-4}}}
    stages = [
        {"name": "warm", "kind": "sft", "options": {"model": str(place / "base"), "data": sums, "epochs": 60, **supervised, "lr": 5e-3}},
        {"name": "pairs", "kind": "samples",
         "options": {"model": "${stages.warm.model}", "data": sums, "keep": "pairs", "group_size": 8, "max_new_tokens": 6,
                     "no_chat": True}},
        {"name": "rm", "kind": "reward_model",
         "options": {"model": "${stages.warm.model}", "data": "${stages.pairs.data}", "epochs": 10, "held-out": 0.3, **supervised}},
        {"name": "dpo", "kind": "preferences",
         "options": {"model": "${stages.warm.model}", "data": "${stages.pairs.data}", "loss": "dpo", "epochs": 10, **supervised}},
        {"name": "ppo", "kind": "rl", "options": rl}]
    for stage in stages:
        stage["options"] = {**stage["options"], **changes.get(stage["name"], {})}
    path = out / "pipeline.yaml"
    path.write_text(yaml.safe_dump({"pipeline": {"name": "p", "out": str(out), "seed": 3}, "stages": stages}, sort_keys=False))
    return path


def records(out):
    return {stage["name"]: stage for stage in json.loads((out / "p" / "pipeline.json").read_text())["stages"]}


def weights(out):
    """The digests of what the stages made, without the folder in which they lie."""
    return {name: [digest for _, digest in sorted(stage["output_digests"].items())] for name, stage in records(out).items()}


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """A pipeline that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    done = tandem("run", pipeline(place, out))
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done


def test_stages_run_in_order_and_what_they_made_is_on_record(place, whole):
    out, done = whole
    lines = [line for line in done.stderr.splitlines() if line.startswith("stage ")]
    kinds = ["sft", "samples", "reward_model", "preferences", "rl"]
    assert lines[::2] == [f"stage {i + 1} of 5: {name} ({kind})" for i, (name, kind) in enumerate(zip(STAGES, kinds))]
    assert all(": done in " in line for line in lines[1::2])
    assert "held out: accuracy" in done.stdout or "accuracy" in done.stdout  # the stage's own lines
    for i, name in enumerate(STAGES):
        record = records(out)[name]
        assert record["state"] == "done" and record["ended"] >= record["started"] > 0
        assert record["directory"] == f"{out}/p/stages/{i + 1}_{name}"
        assert all(pathlib.Path(path).exists() for path in record["outputs"].values())
        assert (pathlib.Path(record["directory"]) / "log.txt").read_text()
    assert records(out)["rm"]["inputs"][records(out)["warm"]["outputs"]["model"]] == weights(out)["warm"][0]
    assert records(out)["ppo"]["options"]["trainer.critic.model"] == f"{out}/p/stages/3_rm/model"
    assert records(out)["warm"]["options"]["seed"] == "3" and records(out)["ppo"]["options"]["trainer.seed"] == "3"


def test_a_second_start_skips_what_is_done(place, whole):
    out, _ = whole
    before = (out / "p" / "pipeline.json").read_bytes()
    again = tandem("run", pipeline(place, out))
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("done before") == 5
    assert (out / "p" / "pipeline.json").read_bytes() == before


def progress(out, index, name):
    """How far a stage is: lines of its metrics, or 1 once it has begun where it writes none."""
    folder = out / "p" / "stages" / f"{index + 1}_{name}"
    if name == "pairs":
        return 2 if (folder / "log.txt").exists() else 0
    path = folder / ("run" if name == "ppo" else "model") / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_pipeline_killed_in_every_stage_makes_the_same_models(place, whole, tmp_path, how):
    config = pipeline(place, tmp_path)
    for index, name in enumerate(STAGES):
        process = subprocess.Popen([TANDEM, "run", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        # Inside the stage; a stage that is over by then was killed at the border to the next.
        wait_until(lambda: progress(tmp_path, index, name) >= 2 or process.poll() is not None, f"{name} does nothing", 120)
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
        assert process.returncode in ((-9,) if how == signal.SIGKILL else (143,)), errors
        done = [record["state"] == "done" for record in records(tmp_path).values()]
        assert all(done[:index]), f"a stage before {name} is lost"
    last = tandem("run", config)
    assert last.returncode == 0, last.stderr
    assert weights(tmp_path) == weights(whole[0])


def test_what_a_killed_pipeline_did_not_write_down_is_taken(place, whole, tmp_path):
    config = pipeline(place, tmp_path)
    subprocess.run(["cp", "-r", whole[0] / "p", tmp_path / "p"], check=True)
    path = tmp_path / "p" / "pipeline.json"
    text = path.read_text().replace(str(whole[0]), str(tmp_path))
    state = json.loads(text)
    # Killed after the last stage had ended and before that was recorded.
    state["stages"][4].update({"state": "running", "outputs": {}, "output_digests": {}, "ended": 0})
    path.write_text(json.dumps(state))
    changed = tandem("run", config, "--dry-run")  # options of rl name directories, which are others here
    assert changed.returncode == 0 and changed.stdout.count("is done") == 5, changed.stdout + changed.stderr
    done = tandem("run", config)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("done before") == 4 and "4 train steps" not in done.stderr
    assert weights(tmp_path) == weights(whole[0])


def test_a_changed_option_of_a_finished_stage_is_refused_and_from_does_it_again(place, tmp_path):
    short = {"warm": {"epochs": 2}}

    def stages(options):
        text = yaml.safe_load(pipeline(place, tmp_path, **{"warm": {**short["warm"], **options}}).read_text())
        text["stages"] = text["stages"][:2]
        path = tmp_path / "two.yaml"
        path.write_text(yaml.safe_dump(text))
        return path
    stages({})
    text = yaml.safe_load((tmp_path / "two.yaml").read_text())
    text["stages"][1] = {"name": "more", "kind": "sft", "options": {**text["stages"][0]["options"], "model": "${stages.warm.model}"}}
    one = tmp_path / "one.yaml"

    def write(lr):
        text["stages"][0]["options"]["lr"] = lr
        one.write_text(yaml.safe_dump(text))
        return one
    assert tandem("run", write(1e-3)).returncode == 0
    first = weights(tmp_path)
    refused = tandem("run", write(2e-3))
    assert refused.returncode == 2
    assert "stage warm is done, and its option lr was `0.001` and is `0.002` now" in refused.stderr
    assert "--from warm" in refused.stderr
    assert weights(tmp_path) == first
    unknown = tandem("run", one, "--from", "nobody")
    assert unknown.returncode == 2 and "there are warm, more" in unknown.stderr
    again = tandem("run", one, "--from", "warm")
    assert again.returncode == 0, again.stderr
    assert all(weights(tmp_path)[name] != first[name] for name in ("warm", "more"))
    # The data of a finished stage is part of it too.
    only_last = tandem("run", one, "--from", "more")
    assert only_last.returncode == 0 and only_last.stderr.count("done before") == 1


def test_mistakes_are_found_before_anything_runs(place, tmp_path):
    cases = [({"rm": {"epoch": 3}}, "stage rm: `tandem train-reward-model` has no option 'epoch'; did you mean epochs?"),
             ({"dpo": {"loss": "dpp"}}, "stage dpo: --loss: --set kind=dpp: kind: 'dpp' is not one of"),
             ({"warm": {"out": "here"}}, "stage warm: 'out' is set by the pipeline"),
             ({"warm": {"shard-parameters": "maybe"}}, "shard-parameters: 'maybe' is not true or false"),
             ({"ppo": {"trainer": {"model": "m", "stepz": 3}}}, "trainer.stepz"),
             ({"dpo": {"model": "${stages.rm.data}"}}, "a stage of kind reward_model has no output 'data'"),
             ({"warm": {"model": "${stages.dpo.model}"}}, "that stage runs later")]
    for changes, message in cases:
        done = tandem("run", pipeline(place, tmp_path, **changes))
        assert done.returncode == 2, (changes, done.stderr)
        assert message in done.stderr and "pipeline.yaml:" in done.stderr, (message, done.stderr)
    missing = tandem("run", pipeline(place, tmp_path, warm={"data": "nowhere.jsonl"}, dpo={"reference": "no_model"}))
    assert missing.returncode == 3
    assert "stage warm reads nowhere.jsonl, which is not there" in missing.stderr
    assert "stage dpo reads no_model, which is not there" in missing.stderr
    assert not (tmp_path / "p").exists()
    plain = tmp_path / "run.yaml"
    plain.write_text("trainer: {model: m}\n")
    assert "has no stages" in tandem("run", plain, "--from", "warm").stderr


def test_the_exit_code_of_a_failed_stage_is_that_of_the_pipeline(place, tmp_path):
    bad = place / "bad.jsonl"
    bad.write_text('{"prompt": "1 + 1 ="}\n')
    config = pipeline(place, tmp_path, warm={"data": str(bad)})
    done = tandem("run", config)
    assert done.returncode == 3
    assert "tandem: stage 1 of 5: warm (sft) ended with exit code 3: its lines are in " in done.stderr
    record = records(tmp_path)["warm"]
    assert record["state"] == "failed" and record["exit_code"] == 3 and records(tmp_path)["pairs"]["state"] == "pending"
    assert "bad.jsonl:1" in (pathlib.Path(record["directory"]) / "log.txt").read_text()
    # It holds no work, so that it may be corrected without a word.
    dry = tandem("run", pipeline(place, tmp_path), "--dry-run")
    assert dry.returncode == 0 and "stage 1 of 5: warm (sft): is to be done" in dry.stdout


def test_a_dry_run_shows_what_is_read_and_written(place, tmp_path):
    done = tandem("run", pipeline(place, tmp_path), "--dry-run", "--set", "warm.epochs=1")
    assert done.returncode == 0, done.stderr
    assert f"pipeline p: 5 stages in {tmp_path}/p" in done.stdout
    assert f"  reads   {place}/base\n" in done.stdout and f"  writes  {tmp_path}/p/stages/2_pairs/data.jsonl\n" in done.stdout
    assert "--epochs=1 " in done.stdout
    assert not (tmp_path / "p").exists()


def test_two_pipelines_of_one_name_do_not_run_at_once(place, tmp_path):
    config = pipeline(place, tmp_path, warm={"epochs": 3000})
    with subprocess.Popen([TANDEM, "run", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_until(lambda: progress(tmp_path, 0, "warm") >= 1, "no updates", 60)
        second = tandem("run", config)
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=60) == 130
    assert second.returncode == 2 and "another process writes there" in second.stderr
