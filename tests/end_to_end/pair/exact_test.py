"""Exact numerics in both processes: over ten pushes, engine and trainer compute the same bits."""
import json

import pytest
import small_run


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request, tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"), kind=request.param)


def config_for(folder, model, dtype, **trainer):
    path = small_run.write_config(folder, model, dtype=dtype, steps=10, **trainer)
    config = json.loads(path.read_text())
    config["server"]["engine"]["dtype"] = dtype
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_ten_steps_report_a_delta_of_exactly_zero(model, dtype, tmp_path):
    code, output = small_run.run(config_for(tmp_path, model, dtype), "--numerics", "exact")
    assert code == 0, output
    steps = small_run.steps(tmp_path)
    assert len(steps) == 10
    for step in steps:
        assert step["staleness/max"] == 0
        assert step["drift/num_tokens"] > 0
        assert step["drift/max_abs_delta"] == 0, step["step"]
        assert step["drift/ess_fraction"] == 1
    card = json.loads((tmp_path / "runs" / "small" / "run.json").read_text())
    assert card["trainer"]["numerics"] == "exact"
    assert [server["numerics"] for server in card["servers"]] == ["exact"]
    assert card["servers"][0]["instruction_set"] == card["trainer"]["instruction_set"] != ""
    # The weights changed, with dithered casts if the server is bf16.
    assert all(step["push/changed_share"] > 0 for step in steps)
    for step in (1, 10):
        for group in small_run.rollouts(tmp_path, step):
            for completion in group["completions"]:
                assert completion["behaviour_logprobs"] == completion["proximal_logprobs"]


def test_filters_are_replayed_bit_for_bit_too(model, tmp_path):
    sampling = {"temperature": 0.8, "top_p": 0.8, "top_k": 50, "max_new_tokens": 12}
    config = config_for(tmp_path, model, "bf16", sampling=sampling)
    code, output = small_run.run(config, "--numerics", "exact", "--set", "trainer.steps=3")
    assert code == 0, output
    steps = small_run.steps(tmp_path)
    assert [step["drift/max_abs_delta"] for step in steps] == [0, 0, 0]


def test_a_server_that_does_not_promise_it_is_refused_with_what_to_set(model, tmp_path):
    config = config_for(tmp_path, model, "bf16")
    code, output = small_run.run(config, "--set", "trainer.numerics=exact")
    assert code == 2, output
    assert "set server.engine.numerics=exact" in output


def test_another_dtype_is_refused_with_both_named(model, tmp_path):
    config = config_for(tmp_path, model, "bf16")
    code, output = small_run.run(config, "--numerics", "exact", "--set", "trainer.dtype=fp32")
    assert code == 2, output
    assert "it computes in bf16, the trainer in fp32" in output
