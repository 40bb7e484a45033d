"""The sbatch script of a run (`tandem render slurm`): the result of shellcheck, and its behaviour in a real Slurm of one
node: a complete run, the time limit, failures, servers that die, GPUs."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess

import pytest

import small_run

from one_node_slurm import OneNodeSlurm
from waiting import wait_until

ON_A_CPU = {"cpus_per_rank": 1, "cpus_per_server": 1}
OPEN = "server.insecure_plaintext_open_to_the_network=true"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with OneNodeSlurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("a model"))


def write_config(folder, model, launch=(), slurm=(), **trainer):
    path = small_run.write_config(folder, model, **trainer)
    config = json.loads(path.read_text())
    config["launch"] = {"num_servers": 2, "num_ranks": 2, "ready_seconds": 60, "stop_seconds": 30, **dict(launch)}
    config["launch"]["slurm"] = {**ON_A_CPU, **dict(slurm)}
    path.write_text(json.dumps(config))
    return path


def render(config, *arguments):
    return subprocess.run([str(small_run.TANDEM), "render", "slurm", str(config), *arguments], cwd=config.parent,
                          capture_output=True, text=True, timeout=120, check=False)


def script_of(config, *arguments):
    done = render(config, "--out", "run.sbatch", *arguments)
    assert done.returncode == 0, done.stderr
    return config.parent / "run.sbatch"


class Run:
    """A submitted script. `folder` has its run file and its runs."""

    def __init__(self, slurm, script):
        self.slurm, self.folder = slurm, script.parent
        self.job = slurm.submit(script, cwd=str(self.folder))
        self.metrics = self.folder / "runs" / "small" / "metrics.jsonl"

    def output(self):
        return (self.folder / f"slurm-{self.job}.out").read_text()

    def logs(self, attempt):
        return self.folder / "runs" / "small" / "logs" / "slurm" / f"{self.job}.{attempt}"

    def wait_for(self, *states):
        return self.slurm.wait_for(self.job, *states)

    def wait_for_a_step_of(self, attempt):
        begin = self.logs(attempt) / "run.yaml"

        def made():
            self.slurm.hasten(self.job)
            return (begin.exists() and self.metrics.exists() and self.metrics.stat().st_mtime > begin.stat().st_mtime
                    and "loss/total" in self.metrics.read_text())
        wait_until(made, f"no step of attempt {attempt}: {self.slurm.logs()}", seconds=240)

    def pid_of(self, **variables):
        """The process of a step of this job with these variables in its environment."""
        wanted = {f"SLURM_JOB_ID={self.job}", *(f"{name}={value}" for name, value in variables.items())}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "exe").readlink().name in ("trainer", "rollout_server") and \
                        wanted <= set((process / "environ").read_text().split("\0")):
                    return int(process.name)
            except OSError:
                continue
        raise AssertionError(f"no process with {wanted}")


CONFIGURATIONS = {
    "one node": ({}, {}),
    "gpus": ({"num_servers": 2, "gpus_per_server": 1}, {"gpu_type": "", "time": "01:00:00", "memory": "1G",
                                                        "exclusive": True}),
    "setup": ({"base_port": 50051}, {"setup": ["module() { echo \"$@\"; }", "module load 'a b'"],
                                     "sbatch": ["--comment=\"two words\"", "--nice=5"]}),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_scripts_are_clean_to_shellcheck_and_sbatch_takes_them(slurm, model, tmp_path, name):
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    launch, options = CONFIGURATIONS[name]
    script = script_of(write_config(folder, model, launch, options))
    done = subprocess.run(["shellcheck", "--shell=bash", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    done = slurm.run("sbatch", "--test-only", str(script))
    assert done.returncode == 0, done.stderr
    assert os.access(script, os.X_OK)


def test_a_script_for_several_nodes_is_clean_too_and_says_where_everyone_goes(model, tmp_path):
    config = write_config(tmp_path, model, {"num_servers": 4, "num_ranks": 16, "ranks_per_node": 8, "gpus_per_server": 2},
                          {"server_nodes": 1, "container_image": "tandem:1", "container_mounts": "/data:/data"})
    script = script_of(config, "--set", OPEN, "--set", "trainer.device=cuda")
    done = subprocess.run(["shellcheck", "--shell=bash", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    text = script.read_text()
    for line in ("#SBATCH --nodes=3", "#SBATCH --gres=gpu:8", "first_server_node=2", "servers_per_node=4",
                 "trainer=trainer", "rollout_server=rollout_server", "container=(--container-image=tandem:1 "):
        assert f"\n{line}" in text, line
    assert "trainer_step=(--relative=0 --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=1 --gres=gpu:8" in text


def test_plaintext_between_nodes_is_refused_unless_the_run_file_says_so(model, tmp_path):
    config = write_config(tmp_path, model, {"ranks_per_node": 1})
    done = render(config)
    assert done.returncode == 2 and "server.listen is '0.0.0.0:0'" in done.stderr, done.stderr
    done = render(config, "--set", OPEN)
    assert done.returncode == 0 and "speak plaintext to whoever reaches them" in done.stderr, done.stderr
    assert "trust whoever reaches their ports" in done.stderr


def test_what_cannot_be_placed_is_refused(model, tmp_path):
    done = render(write_config(tmp_path, model, {"ranks_per_node": 4, "num_ranks": 6}))
    assert done.returncode == 2 and "not a multiple of launch.ranks_per_node" in done.stderr
    done = render(write_config(tmp_path, model, slurm={"account": "a b"}))
    assert done.returncode == 2 and "launch.slurm.account is 'a b'" in done.stderr


def test_a_run_of_two_ranks_and_two_servers_runs_to_its_end(slurm, model, tmp_path):
    folder = tmp_path / "it's 100% a run"
    folder.mkdir()
    run = Run(slurm, script_of(write_config(folder, model, slurm={"sbatch": ["--mem-per-cpu=300M"]})))
    job = run.wait_for("COMPLETED", "FAILED")
    assert job["JobState"] == "COMPLETED", run.output()
    assert len(small_run.steps(folder)) == 3
    logs = run.logs(0)
    assert logs.parent.joinpath("latest").resolve() == logs.resolve()
    servers = re.search(r"servers: 127.0.0.1:(\d+),127.0.0.1:(\d+)\n", run.output())
    assert servers and servers[1] != servers[2]
    for number in (0, 1):
        assert f"rank={number} of=2 said_by=Slurm local_rank={number}" in (logs / f"trainer_{number}.log").read_text()
        assert (logs / f"rollout_server_{number}.log").stat().st_size
    assert "threads: 1" in (logs / "run.yaml").read_text()


def test_a_run_under_mutual_tls_runs_to_its_end(slurm, model, tmp_path):
    subprocess.run([str(small_run.TANDEM), "certs", "--out", "certs"], cwd=tmp_path, check=True, capture_output=True)
    config = write_config(tmp_path, model, {"num_servers": 1, "num_ranks": 1}, tls="certs/trainer")
    content = json.loads(config.read_text())
    content["server"]["tls"] = "certs/rollout"
    config.write_text(json.dumps(content))
    run = Run(slurm, script_of(config))
    assert run.wait_for("COMPLETED", "FAILED")["JobState"] == "COMPLETED", run.output()
    assert len(small_run.steps(tmp_path)) == 3
    assert "role=rollout" in (run.logs(0) / "rollout_server_0.log").read_text()
    assert "role=trainer" in (run.logs(0) / "trainer_0.log").read_text()


def test_a_run_that_is_told_to_stop_saves_and_goes_on_in_another_attempt(slurm, model, tmp_path):
    run = Run(slurm, script_of(write_config(tmp_path, model, slurm={"memory": "2G"}, steps=120)))
    run.wait_for_a_step_of(0)
    # This is what --signal=B:TERM@SECONDS does before the time limit.
    assert slurm.run("scancel", "--batch", "--signal=TERM", run.job).returncode == 0
    wait_until(lambda: slurm.job(run.job)["Restarts"] == "1", "not queued again")
    saved = re.search(r"queued again: the next attempt goes on from step_(\d+)\n", run.output())
    assert saved and 1 <= int(saved[1]) < 120, run.output()
    job = run.wait_for("COMPLETED", "FAILED")
    assert job["JobState"] == "COMPLETED", run.output()
    assert [step["step"] for step in small_run.steps(tmp_path)] == list(range(1, 121))
    assert run.logs(0).is_dir() and run.logs(1).is_dir()
    assert run.logs(1).parent.joinpath("latest").resolve() == run.logs(1).resolve()
    assert not run.logs(0).with_suffix(".failures").exists()


def test_a_failure_that_would_repeat_ends_the_job_without_another_attempt(slurm, model, tmp_path):
    folders = {}
    for name in ("file", "option"):
        folder = tmp_path / name
        folder.mkdir()
        script = script_of(write_config(folder, model))
        if name == "file":
            (folder / "train.jsonl").unlink()
        else:
            script.write_text(script.read_text().replace("\n  steps: ", "\n  stepps: "))
        folders[name] = Run(slurm, script)
    for name, says in (("file", "train.jsonl is not there"), ("option", "unknown key 'trainer.stepps'")):
        job = folders[name].wait_for("COMPLETED", "FAILED")
        output = folders[name].output()
        assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "3:0", "0"), output
        assert says in output and "another attempt would end the same way" in output


def test_a_lost_rank_ends_the_job_with_its_code_after_the_attempts_it_may_have(slurm, model, tmp_path):
    run = Run(slurm, script_of(write_config(tmp_path, model, slurm={"max_restarts": 1}, steps=100000)))
    for attempt in (0, 1):
        run.wait_for_a_step_of(attempt)
        os.kill(run.pid_of(SLURM_PROCID=1), signal.SIGKILL)
        if attempt == 0:
            wait_until(lambda: slurm.job(run.job)["Restarts"] == "1", f"not queued again: {run.output()}")
    job = run.wait_for("COMPLETED", "FAILED")
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "10:0", "1"), run.output()
    assert "a rank was ended by signal 9" in run.output()
    assert "2 attempts failed (launch.slurm.max_restarts is 1): not queued again" in run.output()
    assert "rank 1" in (run.logs(1) / "trainer_0.log").read_text()


def test_a_cancelled_job_does_not_come_back(slurm, model, tmp_path):
    run = Run(slurm, script_of(write_config(tmp_path, model, steps=100000)))
    run.wait_for_a_step_of(0)
    pid = run.pid_of(SLURM_PROCID=1)
    assert slurm.run("scancel", run.job).returncode == 0
    job = run.wait_for("CANCELLED", "COMPLETED", "FAILED", "PENDING")
    assert (job["JobState"], job["Restarts"]) == ("CANCELLED", "0"), run.output()
    wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "a rank is left")


def write_program(path, text):
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


def test_steps_have_their_own_gpus_and_a_server_that_dies_comes_back_at_its_address(slurm, model, tmp_path):
    """With programs that only print their arguments and environment."""
    programs = tmp_path / "programs"
    programs.mkdir()
    write_program(programs / "nvidia-smi", "printf '%s\\n' a b c d\n")
    write_program(programs / "rollout_server", """
echo "$*"
while [[ $1 != --port-file ]]; do [[ $1 == --listen ]] && address=$2; shift; done
echo "$address GPU $CUDA_VISIBLE_DEVICES"
port=${address##*:}
((port > 0)) || port=$((4000 + $$ % 1000))
echo "$port" >"$2.new" && mv "$2.new" "$2"
[[ -e $2.died || $2 != *server_1.port ]] || { touch "$2.died"; exit 4; }
while :; do sleep 0.1; done
""")
    write_program(programs / "trainer", """
[[ "$*" == *--dry-run* ]] && exit 0
echo "GPUs $CUDA_VISIBLE_DEVICES: $*"
until grep -q GPU.*GPU <(tr '\\n' ' ' <"$(dirname "$2")/rollout_server_1.log"); do sleep 0.1; done
""")
    config = write_config(tmp_path, model, {"gpus_per_server": 1, "binaries": str(programs)},
                          {"setup": [f"PATH={shlex.quote(str(programs))}:$PATH"]})
    run = Run(slurm, script_of(config, "--set", "trainer.device=cuda", "--set", "server.observe_listen=127.0.0.1:9400"))
    job = run.wait_for("COMPLETED", "FAILED")
    assert job["JobState"] == "COMPLETED", run.output()
    logs = run.logs(0)
    servers = [(logs / f"rollout_server_{number}.log").read_text() for number in (0, 1)]
    ranks = (logs / "trainer_0.log").read_text()
    first, second = re.findall(r"(\S+) GPU (\d)\n", servers[1])
    assert first[0] == "127.0.0.1:0" and second[0] == "127.0.0.1:" + (logs / "rollout_server_1.port").read_text().strip()
    of_ranks = re.search(r"GPUs (\d),(\d): --config", ranks)
    taken = {*of_ranks.groups(), re.search(r"GPU (\d)\n", servers[0])[1], second[1]}
    assert taken == {"0", "1", "2", "3"}
    assert "rollout_server_1 ended with code 4: starting it again (1 of 3)" in run.output()
    assert "--resume-or-start" in ranks
    assert all(f"server.observe_listen=127.0.0.1:{9400 + number}" in text for number, text in enumerate(servers))
