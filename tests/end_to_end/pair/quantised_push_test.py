"""Runs whose trainer quantises what it pushes: the same servers as those that quantise on arrival, for half or a quarter of the bytes."""
import contextlib
import json
import subprocess

import pytest

import small_run
from rollout_client import Server

FORMATS = {"int8": {"weights": "int8", "kv": "int8"}, "fp8": {"weights": "fp8_e4m3"},
           "int4": {"weights": "int4_group", "weights_by_layer": {"o_proj": "dtype"}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"), "--dtype", "bf16")


def run_of(folder, model, formats, where, *arguments, **trainer):
    folder.mkdir(exist_ok=True)
    path = small_run.write_config(folder, model, dtype="bf16", deterministic=True, push={"quantise_on": where}, **trainer)
    config = json.loads(path.read_text())
    config["server"]["engine"].update({"dtype": "bf16", **formats})
    path.write_text(json.dumps(config))
    code, output = small_run.run(path, *arguments)
    assert code == 0, output
    return small_run.steps(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_both_ways_give_the_same_run_and_the_trainers_way_sends_fewer_bytes(model, tmp_path, name):
    runs = {where: run_of(tmp_path / where, model, FORMATS[name], where, steps=3, capture={"every": 3}, prompts_per_step=8)
            for where in ("server", "trainer")}
    for ours, theirs in zip(runs["trainer"], runs["server"]):
        assert ours["loss/total"] == theirs["loss/total"] and ours["drift/mean_abs_delta"] == theirs["drift/mean_abs_delta"]
        assert ours["push/dense_bytes"] < (0.65 if name != "int4" else 0.45) * theirs["push/dense_bytes"]
    events = {where: small_run.events(tmp_path / where, "push_committed") for where in runs}
    assert [event["form"] for event in events["trainer"]] == ["dense"] + ["delta"] * 3
    assert small_run.events(tmp_path / "trainer", "push_quantises") and not small_run.events(tmp_path / "server", "push_quantises")
    capture = tmp_path / "trainer" / "runs" / "small" / "captures" / "step_3"
    code, table, result = small_run.drift("attribute", capture)
    assert code == 0, table
    parts = {part["part"]: part["mean_abs_alone"]["value"] for part in result["parts"]}
    assert parts["record"] < 2e-6 < parts["quantisation"], table
    small_run.check_ledger(tmp_path / "trainer")


def test_exact_sides_have_the_same_bits_when_the_trainer_quantises(model, tmp_path):
    steps = run_of(tmp_path, model, FORMATS["int8"], "trainer", "--numerics", "exact", steps=3, fake_quantise=FORMATS["int8"])
    assert len(steps) == 3
    for step in steps:
        assert step["drift/max_abs_delta"] == 0, step["step"]


def test_servers_that_quantise_differently_do_so_themselves(model, tmp_path):
    path = small_run.write_config(tmp_path, model, dtype="bf16", steps=2)
    config = json.loads(path.read_text())
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(model, "--dtype", "bf16", "--set", f"server.engine.weights={weights}"))
                   for weights in ("int8", "int4_group")]
        config["trainer"]["servers"] = [server.address for server in servers]
        path.write_text(json.dumps({"trainer": config["trainer"]}))
        done = subprocess.run([str(small_run.TANDEM), "train", "--config", str(path)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not small_run.events(tmp_path, "push_quantises")
    assert len({event["server"] for event in small_run.events(tmp_path, "push_committed")}) == 2
