"""Refill, groups of other sizes and a curriculum with real processes: what a killed and resumed run trains on, and whether
its ledger balances."""
import json
import random
import subprocess

import pytest
import small_run

from rollout_client import BIN, Server
from waiting import wait_until

def ledger(run):
    done = subprocess.run([str(small_run.TANDEM), "ledger", str(run), "--json"], capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout or "{}")


def train(config, server, *arguments):
    with open(config.parent / "trainer.log", "a", encoding="utf-8") as log:
        return subprocess.Popen([str(BIN / "trainer"), "--config", str(config), "--servers", server.address, *arguments],
                                stdout=log, stderr=subprocess.STDOUT)


def train_to_the_end(folder, model, kills, seed, **trainer):
    """A run that is killed so many times, each at some moment of a later step; returns its directory."""
    folder.mkdir()
    config = small_run.write_config(folder, model, checkpoint={"every": 1, "keep": 9}, push={"lease_seconds": 1},
                                    **trainer)
    draws, run, arguments = random.Random(seed), folder / "runs" / "small", []
    metrics = run / "metrics.jsonl"
    with Server(model, "--dtype", "fp32") as server:
        for kill in range(kills):
            process = train(config, server, *arguments)
            wait_until(lambda: metrics.exists() and metrics.read_text().count('"time/step"') > 1 + 2 * kill
                       or process.poll() is not None, "no further step", seconds=240)
            assert process.poll() is None, (folder / "trainer.log").read_text()[-3000:]
            try:
                process.wait(timeout=draws.uniform(0, 0.3))
            except subprocess.TimeoutExpired:
                pass
            process.kill()
            process.wait()
            arguments = ["--resume"]
        process = train(config, server, *arguments)
        assert process.wait(timeout=240) == 0, (folder / "trainer.log").read_text()[-3000:]
    return run


def tokens_of(run, steps):
    return [[(group["group_id"], group["prompt_index"], [c["token_ids"] for c in group["completions"]])
             for group in map(json.loads, (run / "rollouts" / f"step_{step}.jsonl").read_text().splitlines())]
            for step in range(1, steps + 1)]


def test_a_deterministic_run_with_refill_and_a_curriculum_has_the_same_bits_after_kills(model, tmp_path):
    options = {"steps": 8, "deterministic": True, "prompts_per_step": 3, "completions_per_prompt": 6,
               "advantage": {"drop_zero_variance": True}, "dynamic_sampling": {"refill": True, "max_factor": 20},
               "group_size": {"kind": "sequential", "min": 2}, "curriculum": {"kind": "weighted"},
               "optimizer": {"learning_rate": 1e-5}}  # it learns nothing much, so that rewards go on to differ
    whole = train_to_the_end(tmp_path / "whole", model, kills=0, seed=0, **options)
    killed = train_to_the_end(tmp_path / "killed", model, kills=2, seed=3, **options)
    assert tokens_of(whole, 8) == tokens_of(killed, 8)
    weights = [(run / "checkpoints" / "step_8" / "model.safetensors").read_bytes() for run in (whole, killed)]
    assert weights[0] == weights[1]
    sizes = {len(completions) for step in tokens_of(whole, 8) for _, _, completions in step}
    assert sizes == {2, 6}
    for run in (whole, killed):
        code, report = ledger(run)
        assert code == 0 and report["problems"] == [], report
        assert report["trained"] == 24 and report["dropped"]["zero_variance"] > 0
        assert report["groups"] == 24 + report["dropped"]["zero_variance"]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_group_has_one_fate_in_a_killed_run_that_is_stale_oversampled_and_adaptive(model, tmp_path, seed):
    run = train_to_the_end(tmp_path / "run", model, kills=2, seed=seed, steps=8, prompts_per_step=3, max_staleness=1,
                           advantage={"drop_zero_variance": True}, curriculum={"kind": "weighted"},
                           dynamic_sampling={"refill": True, "oversampling": 1.5, "max_factor": 6},
                           group_size={"kind": "adaptive", "min": 2, "max": 8}, optimizer={"learning_rate": 1e-5})
    code, report = ledger(run)
    assert code == 0 and report["problems"] == [], report
    assert report["trained"] + report["skipped"] + sum(report["dropped"].values()) == report["groups"]
    assert report["completions"] <= report["asked_completions"]
    staleness = [step["staleness/max"] for step in small_run.steps(tmp_path / "run")]
    assert len(staleness) == 8 and max(staleness) <= 1


def test_the_ledger_of_what_is_no_run_says_so(tmp_path):
    done = subprocess.run([str(small_run.TANDEM), "ledger", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "has no ledger.sqlite" in done.stderr
    (tmp_path / "ledger.sqlite").write_text("x" * 4000)
    done = subprocess.run([str(small_run.TANDEM), "ledger", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "not a database" in done.stderr
