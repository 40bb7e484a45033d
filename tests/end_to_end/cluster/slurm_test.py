"""A trainer whose ranks srun starts, in a real Slurm of one node."""
import shlex

import pytest

import small_run

from one_node_slurm import OneNodeSlurm
from rollout_client import Server

def quote(path):
    """Quotes for a shell, because folders may have spaces in their names."""
    return shlex.quote(str(path))


RANK_LOST = 10
TRAINER = quote(small_run.TANDEM.parent / "trainer")
# These variables have precedence over Slurm's and may be set in the environment of the test.
UNSET = "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT; "


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with OneNodeSlurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def srun(slurm, tasks, command, *options):
    return slurm.run("srun", f"--ntasks={tasks}", "--label", *options, "bash", "-c", UNSET + command, timeout=240)


def test_srun_starts_the_ranks_of_a_trainer(slurm, model, tmp_path):
    config = small_run.write_config(tmp_path, model, deterministic=True)
    with Server(model, "--dtype", "fp32") as server:
        done = srun(slurm, 2, f"exec {TRAINER} --config {quote(config)} --servers {server.address}")
        assert done.returncode == 0, done.stdout + done.stderr + slurm.logs()
        alone = tmp_path / "alone"
        alone.mkdir()
        other = small_run.write_config(alone, model, deterministic=True)
        done = srun(slurm, 1, f"exec {TRAINER} --config {quote(other)} --servers {server.address}")
        assert done.returncode == 0, done.stdout + done.stderr
    pair, single = small_run.steps(tmp_path), small_run.steps(alone)
    assert len(pair) == len(single) == 3
    for a, b in zip(pair, single):
        assert a["reward/mean"] == b["reward/mean"]
        assert a["optimizer/grad_norm"] == pytest.approx(b["optimizer/grad_norm"], rel=1e-4)


def test_a_rank_that_is_lost_under_srun_ends_the_step_with_the_code_of_the_other(slurm, model, tmp_path):
    config = small_run.write_config(tmp_path, model, steps=100000)
    metrics = tmp_path / "runs" / "small" / "metrics.jsonl"
    # Rank 1 kills itself after a train step, and rank 0 reports which rank is lost.
    command = (f"if [ $SLURM_PROCID = 1 ]; then {TRAINER} --config {quote(config)} --servers $SERVER & own=$!; "
               f"until grep -q loss/total {quote(metrics)} 2>/dev/null; do read -t 0.05 <> <(:); done; kill -9 $own; wait $own; exit 0; "
               f"else exec {TRAINER} --config {quote(config)} --servers $SERVER; fi")
    with Server(model, "--dtype", "fp32") as server:
        done = srun(slurm, 2, command.replace("$SERVER", server.address))
    assert done.returncode == RANK_LOST, done.stdout + done.stderr
    assert "rank 1" in done.stderr, done.stderr


