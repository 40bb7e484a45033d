"""The drift lab on a real language model: SmolLM2 with a bf16 server and an fp32 trainer, captures of about 2 600 tokens
of real rollouts, in which each fault must be found. Slow: label full."""

import pytest
import small_run

MODEL = small_run.SOURCE / "models" / "smollm2-135m-instruct"
TENSOR = "model.layers.10.mlp.down_proj.weight"


def attribute(folder, *arguments, inject=None, steps=2, **trainer):
    """The last step of a run of 8 groups of 8 completions of 40 tokens: (table, JSON)."""
    trainer = {"prompts_per_step": 8, "completions_per_prompt": 8, "checkpoint": {"at_end": False},
               "sampling": {"temperature": 1, "max_new_tokens": 40}, "optimizer": {"learning_rate": 5e-6}, **trainer}
    capture = small_run.capture_of(folder, MODEL, engine={"dtype": "bf16", "kv_capacity_tokens": 16384},
                                   inject=inject, steps=steps, timeout=1500, **trainer)
    code, table, result = small_run.drift("attribute", capture, *arguments, timeout=3000)
    assert code == 0, table
    print(table)
    return table, result


def named(result):
    return {cause["cause"]: cause for cause in result["verdict"]["named"]}


def test_a_healthy_bf16_server_is_split_over_cast_body_kv_and_head_in_shares_that_add_to_all(tmp_path, monkeypatch):
    small_run.without_native_bf16(monkeypatch)
    table, result = attribute(tmp_path, "--full")
    parts = {part["part"]: part for part in result["parts"]}
    assert result["record"]["explained"] and parts["record"]["mean_abs_alone"]["value"] == 0, table
    assert {"cast", "body", "kv"} <= set(named(result)), table
    assert "head" in parts
    assert sum(part["square_share"]["value"] for part in parts.values()) == pytest.approx(1, abs=1e-6), table
    assert not result["verdict"]["open"], table


@pytest.mark.parametrize("parameter, amount", [("temperature", 0.9), ("top_p", 0.95)])
def test_an_undisclosed_transform_is_named_with_its_setting(tmp_path, parameter, amount):
    table, result = attribute(tmp_path, inject={parameter: amount})
    strength = named(result)[parameter]["strength"]
    assert strength["value"] == pytest.approx(amount, abs=1e-3), table
    assert result["record"]["explained"], table


def test_a_tensor_that_was_not_delivered_is_named(tmp_path):
    table, result = attribute(tmp_path, inject={"undelivered_tensor": TENSOR}, steps=3)
    assert TENSOR in named(result)["tensor"]["label"], table


@pytest.mark.breaks("G3")
def test_a_stale_prefix_cache_is_named(tmp_path):
    table, result = attribute(tmp_path, inject={"stale_prefix_fraction": 0.5}, steps=3)
    assert "stale_prefix" in named(result), table
    assert result["record"]["explained"], table


def test_four_versions_of_staleness_are_named(tmp_path):
    table, result = attribute(tmp_path, steps=6, max_staleness=4, push={"hold_back_versions": 4})
    assert "staleness" in named(result), table
    assert named(result)["staleness"]["square_share"]["low"] > 0, table
