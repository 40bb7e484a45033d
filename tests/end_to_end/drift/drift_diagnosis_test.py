"""`tandem drift attribute` on runs whose server does not compute what it claims: it finds the cause and its strength."""
import subprocess

import pytest
import small_run

TENSOR = "model.layers.1.mlp.down_proj.weight"


def attribute_run(folder, model, inject, engine=None, steps=2, **trainer):
    """The diagnosis of the last step of a run with that fault: (table, JSON)."""
    capture = small_run.capture_of(folder, model, engine=engine, inject=inject, steps=steps,
                                   **{"prompts_per_step": 8, **trainer})
    code, table, result = small_run.drift("attribute", capture)
    assert code == 0, table
    return table, result


def expect(result, table, causes):
    """Checks that the diagnosis has exactly these causes with their strengths and explains the whole difference."""
    record = {"kernels", "layout", "cast", "body", "kv", "head", "staleness"}
    named = {cause["cause"]: cause for cause in result["verdict"]["named"] if cause["cause"] not in record}
    assert set(named) == set(causes), table
    for cause, strength in causes.items():
        if strength is not None:
            assert named[cause]["strength"]["value"] == pytest.approx(strength, rel=5e-3), table
    assert result["record"]["explained"] and result["record"]["after"]["matched_share"] > 0.99, table
    assert sum(part["square_share"]["value"] for part in result["parts"]) == pytest.approx(1, abs=1e-6)
    assert not result["verdict"]["open"], table


@pytest.mark.parametrize("inject, causes", [
    ({"temperature": 0.9}, {"temperature": 0.9}),
    ({"top_p": 0.95}, {"top_p": 0.95}),
    ({"top_k": 20}, {"top_k": 20}),
    ({"min_p": 0.02}, {"min_p": 0.02}),
    ({"temperature": 0.9, "top_p": 0.9}, {"temperature": 0.9, "top_p": 0.9}),
    ({"body_bits": 9}, {"body_bits": 9}),
    ({"head_bits": 10}, {"head_bits": 10}),
    ({"kv_bits": 8}, {"kv_bits": 8}),
    ({"rotary_bits": 8}, {"rotary_bits": 8}),
    ({"kv_quant_bits": 6, "kv_quant_from": 14}, {"kv_quantisation": 6}),
    ({"kv_bits": 8, "temperature": 0.95}, {"kv_bits": 8, "temperature": 0.95}),
    ({"stale_versions": 1}, {"other_version": 1}),
    ({"weight_interpolation": 0.5}, {"interpolation": 0.5}),
    ({"weight_interpolation": 1, "tensor": TENSOR}, {"tensor": 1}),
    ({"undelivered_tensor": "model.norm.weight"}, {"tensor": 1}),
    pytest.param({"stale_prefix_fraction": 0.5}, {"stale_prefix": None}, marks=pytest.mark.breaks("G3")),
    ({"shift_fraction": 0.25}, {"shift": None}),
    ({"temperature": 0.9, "shift_fraction": 0.25}, {"temperature": 0.9, "shift": None}),
    ({"wrong_bos": 0}, {"first_id": None}),
    ({"weight_format": "int8"}, {"weight_format": None}),
    ({"weight_format": "int4_group"}, {"weight_format": None}),
    ({"weight_format": "fp8_e4m3", "temperature": 0.9}, {"weight_format": None, "temperature": 0.9}),
], ids=lambda value: "_".join(value) if isinstance(value, dict) and "strength" not in value else None)
def test_a_fault_that_a_replay_repeats_is_named_with_its_exact_amount(model, tmp_path, inject, causes):
    table, result = attribute_run(tmp_path, model, inject)
    expect(result, table, causes)
    assert result["injected"], "an artefact of a faulty run says so"


def test_the_cause_is_found_in_a_bf16_engine_beside_its_own_precision(model, tmp_path, monkeypatch):
    small_run.without_native_bf16(monkeypatch)
    table, result = attribute_run(tmp_path, model, {"temperature": 0.9}, engine={"dtype": "bf16"})
    expect(result, table, {"temperature": 0.9})
    parts = {part["part"]: part["mean_abs_alone"]["value"] for part in result["parts"]}
    assert parts["record"] == 0 and parts["emulation"] == 0, table
    assert parts["cast"] > 1e-4 and parts["body"] > 1e-4, table


@pytest.mark.parametrize("engine", [{"weights": "int8", "kv": "int8"},
                                    {"weights": "int4_group", "weights_by_layer": {"down_proj": "dtype"}, "dtype": "bf16"}],
                         ids=["int8", "int4_by_layer"])
def test_formats_that_the_server_discloses_are_a_part_of_their_own(model, tmp_path, monkeypatch, engine):
    small_run.without_native_bf16(monkeypatch)
    table, result = attribute_run(tmp_path, model, None, engine=engine)
    expect(result, table, {"quantisation": None})
    parts = {part["part"]: part for part in result["parts"]}
    assert parts["record"]["mean_abs_alone"]["value"] == 0, table
    assert parts["quantisation"]["square_share"]["low"] > 0.5, table


def test_an_undisclosed_format_of_weights_is_named_beside_a_disclosed_one_of_kv(model, tmp_path):
    # Of 48 prompts the share of the KV is far from 0, whatever tokens a machine draws.
    table, result = attribute_run(tmp_path, model, {"weight_format": "int8"}, engine={"kv": "fp8_e4m3"}, prompts_per_step=48)
    expect(result, table, {"weight_format": None, "quantisation": None})
    assert "int8" in table, table


def test_an_undisclosed_format_in_place_of_the_disclosed_one_explains_all_by_itself(model, tmp_path):
    table, result = attribute_run(tmp_path, model, {"weight_format": "int4_group"}, engine={"weights": "int8"})
    # The share of the disclosed format is E[d4 d8] / E[d4 d4], where d4 and d8 are what int4_group and int8 do to a log-prob: the
    # server rounded no weight to int8. The two are nearly uncorrelated, so chance decides whether this small share is named.
    parts = {part["part"]: part["square_share"] for part in result["parts"]}
    disclosed = {cause["cause"] for cause in result["verdict"]["named"]} & {"quantisation"}
    expect(result, table, {"weight_format": None, **dict.fromkeys(disclosed)})
    assert parts["weight_format"]["low"] > 0.9 and abs(parts["quantisation"]["value"]) < 0.1, table
    assert "int4_group" in table, table


def test_a_trainer_that_imitates_the_formats_leaves_nothing_to_explain_in_exact_numerics(model, tmp_path):
    formats = {"weights": "int8", "kv": "int8"}
    table, result = attribute_run(tmp_path, model, None, engine={**formats, "numerics": "exact"}, numerics="exact", fake_quantise=formats)
    assert result["verdict"]["nothing_to_explain"] and not result["verdict"]["named"], table


def test_tokens_drawn_otherwise_than_recorded_are_named_by_their_likelihood(model, tmp_path):
    table, result = attribute_run(tmp_path, model, {"temperature": 0.6, "record": "claimed"}, prompts_per_step=24)
    (cause,) = [cause for cause in result["verdict"]["named"] if cause["cause"] == "temperature"]
    assert cause["strength"]["low"] < 0.6 < cause["strength"]["high"], table
    assert cause["square_share"]["value"] == 0, "delta does not see it"


def test_a_drill_says_whether_the_fault_would_be_found_and_leaves_the_run_alone(model, tmp_path):
    config = small_run.write_config(tmp_path, model, prompts_per_step=8, deterministic=True)
    done = subprocess.run([str(small_run.TANDEM), "drift", "inject", str(config), "--dial", "temperature=0.8"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "injected: temperature=0.8" in done.stdout and "named:    temperature (temperature 0.8 times" in done.stdout
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["fault_drill"]
    done = subprocess.run([str(small_run.TANDEM), "drift", "inject", str(config), "--dial", "temprature=0.8"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "nearest valid name is 'drift.inject.temperature'" in done.stderr
