"""trainer.metrics.peer_names in complete runs: drift metrics with the names of other systems."""
import pytest
import small_run


def run(folder, model, peers, **trainer):
    path = small_run.write_config(folder, model, metrics={"peer_names": peers}, **trainer)
    return small_run.run(path)


def test_the_numbers_are_those_of_the_run_s_own_drift(model, tmp_path):
    code, output = run(tmp_path, model, ["verl", "nemo_rl", "trl", "prime_rl"])
    assert code == 0, output
    lines = small_run.steps(tmp_path)
    assert len(lines) == 3
    same = {"rollout_corr/k3_kl": "drift/k3", "rollout_corr/kl": "drift/k1", "train/gen_kl_error": "drift/k3",
            "rollout_corr/chi2_token": "drift/chi2", "rollout_corr/log_ppl_diff": "drift/log_ppl_gap",
            "train/token_mult_prob_error": "drift/mean_exp_abs_delta", "sampling/sampling_logp_difference/mean": "drift/mean_abs_delta",
            "sampling/sampling_logp_difference/max": "drift/max_abs_delta", "mismatch_kl/all/mean": "drift/k3",
            "rollout_corr/rollout_is_mean": "correction/mean_weight", "rollout_corr/rollout_is_max": "correction/max_weight",
            "training/rollout_probs_diff_mean": "drift/mean_abs_probability_difference",
            "training/rollout_actor_probs_pearson_corr": "drift/pearson_probability",
            "sampling/importance_sampling_ratio/mean": "correction/mean_weight"}
    for line in lines:
        for theirs, mine in same.items():
            assert line[theirs] == pytest.approx(line[mine], rel=1e-4, abs=1e-9), theirs


def test_with_two_updates_a_step_prime_rls_policy_is_not_ours_and_is_left_out(model, tmp_path):
    code, output = run(tmp_path, model, ["prime_rl", "trl"], num_minibatches=2)
    assert code == 0, output
    for line in small_run.steps(tmp_path):
        assert not any(name.startswith("mismatch_kl/") for name in line)
        assert "sampling/sampling_logp_difference/mean" in line


def test_without_the_knob_there_are_none_and_an_unknown_peer_is_refused(model, tmp_path):
    code, output = run(tmp_path, model, [])
    assert code == 0, output
    assert not any(name.startswith(("rollout_corr/", "train/", "sampling/", "mismatch_kl/", "training/"))
                   for line in small_run.steps(tmp_path) for name in line)
    code, output = run(tmp_path, model, ["slime"])
    assert code == 2 and 'metrics.peer_names: "slime" is none of verl, nemo_rl, trl, prime_rl' in output
