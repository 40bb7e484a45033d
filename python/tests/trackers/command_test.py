"""The command line: what it refuses, what it says, and where it notes what was sent."""
import subprocess
import sys

import pytest

from written_run import call, environment, start


@pytest.mark.parametrize("service", ["wandb", "mlflow"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(service, run, tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / f"{service}.py").write_text("raise ModuleNotFoundError(f'No module named {__name__!r}')\n")
    env = environment()
    code, said = call(service, run.path, "--once", env={**env, "PYTHONPATH": f"{tmp_path / 'hidden'}:{env['PYTHONPATH']}"})
    assert code == 2 and f"pip install 'tandem-rl[{service}]'" in said and "Traceback" not in said, said


@pytest.mark.parametrize("service", ["wandb", "mlflow"])
def test_a_directory_that_is_no_run_is_refused(service, tmp_path):
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "thesis.tex").touch()
    code, said = call(service, folder)
    assert code == 2 and "papers is no run directory" in said and "Traceback" not in said
    code, said = call(service, tmp_path / "nothing", "--once")
    assert code == 2 and "nothing is no directory" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["papers"] and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("arguments, message", [
    ([], "required"), (["comet", "RUN"], "invalid choice"), (["mlflow", "RUN", "--tag", "a"], "expected KEY=VALUE"),
    (["wandb", "RUN", "--poll-seconds", "0"], "expected a number above 0"), (["wandb", "RUN", "--mode", "later"], "invalid choice")])
def test_usage_errors_have_exit_code_2(arguments, message):
    code, said = call(*arguments)
    assert code == 2 and message in said


@pytest.mark.parametrize("service", ["wandb", "mlflow"])
def test_nothing_is_written_into_the_run_directory(service, run, tmp_path):
    run.steps(1)
    run.finish()
    before = {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()}
    (tmp_path / "elsewhere").mkdir()
    code, said = call(service, run.path, "--state-dir", tmp_path / "state", cwd=tmp_path / "elsewhere",
                      env=environment(WANDB_MODE="offline", MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db"))
    assert code == 0, said
    assert {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()} == before
    assert (tmp_path / "state" / f"{service}.jsonl").is_file() and not (run.path.parent / ".trackers").exists()


def test_two_trackers_of_one_run_are_refused(run, tmp_path):
    env = environment(WANDB_MODE="disabled")
    with start("wandb", run.path, env=env) as first:
        assert any("goes nowhere" in line for line in iter(first.stderr.readline, ""))
        code, said = call("wandb", run.path, "--once", env=env)
        assert code == 2 and "another tracker follows this run already" in said
        first.kill()
    assert call("wandb", run.path, "--once", env=env)[0] == 0


def test_the_package_without_a_tracker_needs_neither_service():
    code = "import sys, tandem_rl.trackers.__main__; sys.exit(bool({'wandb', 'mlflow', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0
