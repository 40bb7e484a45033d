"""Both processes over gRPC: they run the same model, and a skipped push is detected."""
import math

import pytest
import small_run


def test_both_sides_agree_in_fp32_at_every_version(model, tmp_path):
    code, output = small_run.run(small_run.write_config(tmp_path, model))
    assert code == 0, output
    steps = small_run.steps(tmp_path)
    assert len(steps) == 3
    for step in steps:
        assert step["drift/num_tokens"] > 0
        assert step["drift/mean_abs_delta"] <= 1e-5, step["step"]
        assert step["staleness/max"] == 0
    # The weights changed, so the agreement is not that of a constant model.
    assert [step["push/version"] for step in steps] == [1, 2, 3]
    assert all(step["push/changed_share"] > 0.5 for step in steps)
    assert all(step["optimizer/grad_norm"] > 0 for step in steps)


def test_the_same_seed_gives_the_same_ids_logprobs_and_losses(model, tmp_path):
    runs = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        code, output = small_run.run(small_run.write_config(folder, model, deterministic=True))
        assert code == 0, output
        runs.append(folder)
    for step in (1, 2, 3):
        for first, second in zip(*(small_run.rollouts(folder, step) for folder in runs), strict=True):
            for a, b in zip(first["completions"], second["completions"], strict=True):
                for key in ("token_ids", "behaviour_logprobs", "proximal_logprobs", "reward"):
                    assert a[key] == b[key]
    for first, second in zip(*map(small_run.steps, runs), strict=True):
        assert first["loss/total"] == second["loss/total"]
        assert first["optimizer/grad_norm"] == second["optimizer/grad_norm"]


def test_another_seed_gives_other_completions(model, tmp_path):
    ids = []
    for seed in (5, 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        code, output = small_run.run(small_run.write_config(folder, model, seed=seed, steps=1))
        assert code == 0, output
        ids.append([c["token_ids"] for g in small_run.rollouts(folder, 1) for c in g["completions"]])
    assert ids[0] != ids[1]


@pytest.mark.breaks("G2")
def test_a_skipped_push_stops_the_run_and_names_the_reason(model, tmp_path):
    config = small_run.write_config(tmp_path, model, push={"debug_skip_push_at_step": 2})
    code, output = small_run.run(config)
    assert code == 6, output
    assert "version" in output and "127.0.0.1" in output
    assert len(small_run.steps(tmp_path)) == 1  # no group of the stale server was trained on


def test_a_run_that_was_stopped_goes_on_bitwise(model, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    code, output = small_run.run(small_run.write_config(whole, model, deterministic=True, steps=4))
    assert code == 0, output
    config = small_run.write_config(parts, model, deterministic=True, steps=4)
    code, output = small_run.run(config, "--set", "trainer.steps=2")
    assert code == 0, output
    code, output = small_run.run(config, "--resume")
    assert code == 0, output
    assert [s["step"] for s in small_run.steps(parts)] == [1, 2, 3, 4]
    for step in (3, 4):
        for a, b in zip(small_run.rollouts(whole, step), small_run.rollouts(parts, step), strict=True):
            assert [c["token_ids"] for c in a["completions"]] == [c["token_ids"] for c in b["completions"]]
            assert [c["behaviour_logprobs"] for c in a["completions"]] == [
                c["behaviour_logprobs"] for c in b["completions"]]
    assert small_run.steps(whole)[3]["loss/total"] == small_run.steps(parts)[3]["loss/total"]


def test_every_number_of_a_step_is_finite(model, tmp_path):
    code, output = small_run.run(small_run.write_config(tmp_path, model, steps=1))
    assert code == 0, output
    for name, value in small_run.steps(tmp_path)[0].items():
        if isinstance(value, float):
            assert math.isfinite(value), name
    assert (tmp_path / "runs" / "small" / "report.html").stat().st_size > 100_000
