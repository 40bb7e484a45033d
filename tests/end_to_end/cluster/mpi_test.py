"""A trainer whose ranks Open MPI starts."""
import subprocess

import small_run

from rollout_client import Server


def test_mpirun_starts_the_ranks_of_a_trainer(tmp_path):
    model = small_run.make_model(tmp_path / "model")
    config = small_run.write_config(tmp_path, model)
    with Server(model, "--dtype", "fp32") as server:
        done = subprocess.run(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", str(small_run.TANDEM.parent / "trainer"),
             "--config", str(config), "--servers", server.address], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(small_run.steps(tmp_path)) == 3
    assert "rank=1 of=2" in done.stderr and "Open MPI" in done.stderr, done.stderr
