"""The probe set, the additive split and the detection of missing deliveries on complete runs: healthy, with stale servers,
with a tensor that no push updates, and with pushes that arrive one version late."""
import json

import pytest

import small_run

STEPS = 12
# A tensor of the first layer, whose difference grows while the trainer learns.
TENSOR = "model.layers.0.mlp.down_proj.weight"
DETECTOR = {"non_delivery", "late_delivery"}
PARTS = ("record", "engine", "cast", "staleness")


def run_of(folder, model, dtype="fp32", inject=None, arguments=(), steps=STEPS, **trainer):
    """The lines of metrics.jsonl of a run that measures everything in every step."""
    config = small_run.write_config(folder, model, steps=steps, probe={"every": 1}, split={"every": 1}, **trainer)
    content = json.loads(config.read_text(encoding="utf-8"))
    content["server"]["engine"]["dtype"] = dtype
    if inject:
        content["drift"] = {"inject": inject}
    config.write_text(json.dumps(content), encoding="utf-8")
    code, output = small_run.run(config, *arguments)
    assert code == 0, output
    return small_run.steps(folder)


def alarms(folder):
    return [event["name"] for event in small_run.events(folder, "alert") if event["name"] in DETECTOR]


def check_split(line):
    """Checks properties of every split for which all tokens have scores."""
    assert line["drift/split/missing_tokens"] == 0
    total = sum(line[f"drift/split/{part}_mean"] for part in PARTS)
    # Numbers are written with nine digits.
    assert total == pytest.approx(line["drift/mean_delta"], abs=1e-8 * (1 + abs(total)))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_healthy_run_raises_no_alarm_and_its_drift_is_kernels_and_cast(tmp_path, model, dtype):
    lines = run_of(tmp_path, model, dtype)
    assert alarms(tmp_path) == []
    for line in lines:
        check_split(line)
        # A replay by the servers gives the bits of the record, and nothing is stale.
        assert line["drift/split/record_mean_abs"] == 0
        assert line["drift/split/staleness_mean_abs"] == 0
        assert (line["drift/split/cast_mean_abs"] == 0) == (dtype == "fp32")
        assert line["drift/delivery/behind"] == 0
        assert line["drift/probe/tokens"] == lines[0]["drift/probe/tokens"]
    # The tokens of the first step are those of the probe set.
    assert abs(lines[0]["drift/visitation/mean_abs_delta"]) < 1e-9
    assert lines[-1]["drift/probe/distance"] > lines[0]["drift/probe/distance"] == 0
    assert lines[-1]["drift/delivery/pushes"] == STEPS


def test_servers_held_back_are_stale_and_not_undelivered(tmp_path, model):
    lines = run_of(tmp_path, model, max_staleness=3, push={"hold_back_versions": 3})
    assert alarms(tmp_path) == []
    last = lines[-1]
    check_split(last)
    assert last["drift/probe/lag"] == 3
    assert last["drift/delivery/behind"] == 0
    # All drift is staleness. With equal versions, only rounding remains.
    assert last["drift/probe/mean_abs_delta"] > 1e-3
    assert last["drift/delivery/square"] < 1e-9
    assert max(line["drift/split/staleness_mean_abs"] for line in lines) > 1e-3
    assert max(line["drift/split/engine_mean_abs"] for line in lines) < 1e-4


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_tensor_that_no_push_reaches_is_non_delivery(tmp_path, model, dtype):
    lines = run_of(tmp_path, model, dtype, inject={"undelivered_tensor": TENSOR})
    assert set(alarms(tmp_path)) == {"non_delivery"}
    assert lines[-1]["drift/delivery/undelivered_low"] > 4 * lines[-1]["drift/delivery/floor"]
    alert = [event for event in small_run.events(tmp_path, "alert") if event["name"] == "non_delivery"][-1]
    assert alert["low"] > alert["threshold"]
    assert f"[{alert['low']:g}, {alert['high']:g}]" in alert["message"]
    # Version 0 is what the server loaded, so nothing is missing yet.
    assert lines[0]["drift/delivery/square"] == lines[0]["drift/delivery/floor"]


def test_a_push_that_comes_one_version_late_is_named_late(tmp_path, model):
    lines = run_of(tmp_path, model, inject={"stale_versions": 1})
    assert set(alarms(tmp_path)) == {"late_delivery"}
    assert all(line["drift/delivery/behind"] == 1 for line in lines[1:])


def test_a_stale_run_is_split_at_the_versions_that_drew_its_tokens(tmp_path, model):
    # Which steps have tokens of the version before depends on how fast the two sides are.
    lines = run_of(tmp_path, model, max_staleness=1, steps=2 * STEPS)
    assert alarms(tmp_path) == []
    split = [line for line in lines if line["drift/split/tokens"] > 0]
    assert len(split) >= STEPS // 2
    for line in split:
        parts = sum(line[f"drift/split/{part}_mean"] for part in PARTS)
        assert parts == pytest.approx(line["drift/split/mean_delta"], abs=1e-8 * (1 + abs(parts)))
    assert max(line["drift/split/staleness_mean_abs"] for line in split) > 1e-3


def test_a_resumed_run_and_another_run_score_the_same_set(tmp_path, model):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    run_of(first, model, steps=4, checkpoint={"every": 1})
    chosen = first / "runs" / "small" / "probe" / "set.jsonl"
    before = chosen.read_bytes()
    lines = run_of(first, model, steps=8, checkpoint={"every": 1}, arguments=("--resume",))
    assert chosen.read_bytes() == before
    assert [line["step"] for line in lines] == list(range(1, 9))
    # The first version after the resume has no push distance, so the trend does not include it.
    assert lines[-1]["drift/delivery/pushes"] == 7
    other = run_of(second, model, steps=2, seed=9)
    config = small_run.write_config(second, model, steps=2, seed=9, probe={"every": 1, "file": str(chosen)})
    code, output = small_run.run(config, "--clean")
    assert code == 0, output
    assert (second / "runs" / "small" / "probe" / "set.jsonl").read_bytes() == before
    assert small_run.steps(second)[0]["drift/probe/mean_abs_delta"] == lines[0]["drift/probe/mean_abs_delta"]
    assert other[0]["drift/probe/mean_abs_delta"] != lines[0]["drift/probe/mean_abs_delta"]


def test_a_probe_file_that_does_not_fit_ends_the_run_and_is_named(tmp_path, model):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt_token_ids": [1], "completion_token_ids": [100000]}\n', encoding="utf-8")
    config = small_run.write_config(tmp_path, model, probe={"file": str(bad)})
    code, output = small_run.run(config)
    assert code == 3
    assert "bad.jsonl: completion 1 has id 100000" in output
