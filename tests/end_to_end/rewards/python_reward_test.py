"""Runs of two steps whose reward is a function in Python, well-behaved and not: a fault is a clear message, and no group is
lost (the ledger and conftest.py's history check). tests/trainer/rewards/python has the faults one by one."""
import json
import subprocess

import pytest

import small_run
from waiting import wait_until

PYTHON = small_run.SOURCE / ".deps" / "venv" / "bin" / "python"

REWARDS = '''
import os, signal, subprocess, sys
HERE = os.path.dirname(os.path.abspath(__file__))

def first(name):
    """Whether this is the first call of all for the fault `name`."""
    try:
        os.close(os.open(os.path.join(HERE, name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def letters(completions, **kwargs):
    return [float(any(c in text for c in "eq")) for text in completions]

async def length(completion_ids, trainer_state, log_metric, **kwargs):
    log_metric("seen_step", trainer_state.global_step)
    return [len(ids) / 100 for ids in completion_ids]

def raises(completions, **kwargs):
    return [1 / (text.count("e") + text.count("q")) for text in completions]

def sleeps(completions, **kwargs):
    if first("sleeps"): signal.pause()
    return letters(completions)

def eats(completions, **kwargs):
    if first("eats"):
        held = bytearray(b"x") * (500 << 20)
        signal.pause()
    return letters(completions)

def forks(completions, **kwargs):
    if first("forks"):
        child = subprocess.Popen(["sleep", "600"])
        open(os.path.join(HERE, "child"), "w").write(str(child.pid))
        os._exit(1)
    return letters(completions)

def too_few(completions, **kwargs):
    return letters(completions)[1:] if first("too_few") else letters(completions)

def prints(completions, **kwargs):
    print('{"id": 0, "rewards": []}', flush=True)
    os.system("echo from a child of the reward")
    return letters(completions)

def killed(completions, **kwargs):
    if first("killed"): os.kill(os.getpid(), signal.SIGKILL)
    return letters(completions)
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_reward.py").write_text(REWARDS, encoding="utf-8")
    return tmp_path


def run(folder, model, function="letters", **reward):
    python = {"functions": f"{folder}/my_reward.py:{function}", "interpreter": str(PYTHON), "timeout_seconds": 2,
              "memory_limit_mib": 300, **reward}
    config = small_run.write_config(folder, model, steps=2, reward={"python": python})
    return small_run.run(config)


def is_alive(process):
    """Whether there is such a process and it is no zombie."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return ") Z" not in file.read()
    except OSError:
        return False


def trainer_log(folder):
    return (folder / "runs" / "small" / "logs" / "trainer.log").read_text(encoding="utf-8", errors="replace")


def reasons(folder):
    return [completion["drop_reason"] for step in (1, 2) for group in small_run.rollouts(folder, step)
            for completion in group["completions"] if completion["drop_reason"]]


def test_the_short_form_trains_and_shows_the_function_as_a_part(folder, model, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", str(PYTHON.parent.parent))
    config = small_run.write_config(folder, model, steps=2, reward={"python": f"{folder}/my_reward.py:letters"})
    code, output = small_run.run(config)
    assert code == 0, output
    assert [line["reward/part/letters"] for line in small_run.steps(folder)] == \
        [line["reward/mean"] for line in small_run.steps(folder)]
    assert reasons(folder) == []
    small_run.check_ledger(folder)
    # The reward of each completion is that of the function.
    for group in small_run.rollouts(folder, 1):
        for completion in group["completions"]:
            assert completion["reward"] == float(any(c in completion["text"] for c in "eq"))


def test_two_functions_have_weights_and_metrics(folder, model):
    config = small_run.write_config(folder, model, steps=2, reward={
        "weights": {"letters": 2, "length": 1},
        "python": {"functions": [f"{folder}/my_reward.py:{name}" for name in ("letters", "length")],
                   "shaping": ["length"], "interpreter": str(PYTHON)}})
    code, output = small_run.run(config)
    assert code == 0, output
    last = small_run.steps(folder)[-1]
    assert last["reward/mean"] == pytest.approx(2 * last["reward/part/letters"] + last["reward/part/length"])
    assert "reward/logged/seen_step" in last and last["reward/python_calls"] > 0
    # A long text with a right letter is as correct as a short one.
    assert 0 < last["reward/pass_at_k"] <= 1


@pytest.mark.parametrize("function, said", [
    ("raises", "ZeroDivisionError: division by zero (my_reward.py:"),
    ("too_few", "too_few returned 3 rewards for 4 completions: want one for each, in order"),
])
def test_what_a_function_does_wrong_masks_its_completions_and_the_run_goes_on(folder, model, monkeypatch, function, said):
    monkeypatch.chdir(folder)
    code, output = run(folder, model, function)
    assert code == 0, output
    found = reasons(folder)
    assert found and all(reason.startswith(f"reward_failed: {function}: ") for reason in found), found
    assert any(said in reason for reason in found), found
    assert len(small_run.steps(folder)) == 2
    small_run.check_ledger(folder)


def test_a_traceback_is_in_the_log_once_and_an_event(folder, model, monkeypatch):
    monkeypatch.chdir(folder)
    code, output = run(folder, model, "raises")
    assert code == 0, output
    lines = trainer_log(folder).splitlines()  # the line of the event has it too, escaped
    assert sum(line.startswith("Traceback (most recent call last)") for line in lines) == 1
    assert len(small_run.events(folder, "reward_raised")) == 1


@pytest.mark.parametrize("function", ["sleeps", "eats", "forks", "killed", "prints"])
def test_a_process_that_breaks_once_loses_nothing(folder, model, function):
    code, output = run(folder, model, function)
    assert code == 0, output
    assert reasons(folder) == []  # what was open was asked once more
    small_run.check_ledger(folder)
    if function == "forks":
        child = (folder / "child").read_text()
        wait_until(lambda: not is_alive(child), "the child of a function whose process ended")
    if function == "prints":
        assert "from a child of the reward" in trainer_log(folder)


@pytest.mark.parametrize("text, said", [
    ("def letters(completions:\n", "SyntaxError"),
    ("import no_such_package\n", "No module named 'no_such_package'"),
    ("def leters(completions): pass\n", "has no letters; did you mean leters?"),
    ("letters = 3\n", "is an int, want a function"),
    ("def letters(completions, colour): pass\n", "needs the argument colour"),
])
def test_a_function_that_cannot_be_called_ends_the_start(folder, model, text, said):
    (folder / "my_reward.py").write_text(text, encoding="utf-8")
    code, output = run(folder, model)
    assert code == 2, output
    assert said in output
    assert not (folder / "runs" / "small").exists(), "nothing was started"


def test_without_python_the_start_says_so(folder, model):
    code, output = run(folder, model, interpreter="/nowhere/python3")
    assert code != 0
    assert "cannot start reward worker '/nowhere/python3'" in output and "Python 3.10 or newer" in output


def test_rewards_do_not_depend_on_workers_and_batches(folder, model, tmp_path_factory):
    def texts_and_rewards(**reward):
        place = tmp_path_factory.mktemp("run")
        (place / "my_reward.py").write_text(REWARDS, encoding="utf-8")
        config = small_run.write_config(place, model, steps=2, deterministic=True, reward={
            "python": {"functions": f"{place}/my_reward.py:letters", "interpreter": str(PYTHON), **reward}})
        code, output = small_run.run(config)
        assert code == 0, output
        return [[(c["text"], c["reward"]) for c in group["completions"]] for step in (1, 2)
                for group in small_run.rollouts(place, step)]
    assert texts_and_rewards(workers=1, batch_size=64) == texts_and_rewards(workers=3, batch_size=1)


def tandem_reward(folder, *arguments):
    done = subprocess.run([str(small_run.TANDEM), "reward", *map(str, arguments), "--python", str(PYTHON)],
                          capture_output=True, text=True, timeout=240, cwd=folder)
    return done.returncode, done.stdout, done.stderr


def write_data(folder, rows):
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "data.jsonl"


def test_tandem_reward_shows_the_best_and_the_worst_case(folder):
    data = write_data(folder, [{"prompt": "one", "answer": "eel"}, {"prompt": "two", "answer": "xyz"}])
    code, output, errors = tandem_reward(folder, "my_reward.py:letters", "--data", data, "--json")
    assert code == 0, errors
    tried = json.loads(output)
    assert [[c["reward"] for c in row["completions"]] for row in tried["rows"]] == [[1, 0], [0, 0]]
    assert (tried["mean"], tried["num_groups"], tried["num_zero_variance"]) == (0.25, 2, 1)
    assert tried["std"] == pytest.approx(0.5)
    code, output, errors = tandem_reward(folder, "my_reward.py:letters", "--data", data)
    assert code == 0 and "the answer of the data, which should get the best reward" in output
    assert "so that their completion_ids are empty" in output
    assert "(empty)" in output


def test_tandem_reward_takes_completions_and_shows_tracebacks(folder):
    data = write_data(folder, [{"prompt": "one", "answer": "1"}])
    (folder / "said.jsonl").write_text('{"completions": ["e", "x"]}\n', encoding="utf-8")
    code, output, errors = tandem_reward(folder, "my_reward.py:raises", "--data", data, "--completions-file", "said.jsonl")
    assert code == 3 and "1 of 2 completions have no reward" in errors
    assert "ZeroDivisionError" in output and "Traceback (most recent call last)" in output


def test_tandem_reward_takes_the_completions_of_a_run_and_of_a_model(folder, model):
    code, output = run(folder, model)
    assert code == 0, output
    rollouts = folder / "runs" / "small" / "rollouts"
    code, output, errors = tandem_reward(folder, "my_reward.py:letters", "--data", folder / "train.jsonl", "--rollouts", rollouts,
                                         "--json", "--limit", 0)
    assert code == 0, errors
    want = [[c["reward"] for c in group["completions"]] for group in small_run.rollouts(folder, 2)]
    assert sorted([c["reward"] for c in row["completions"]] for row in json.loads(output)["rows"]) == sorted(want)
    code, output, errors = tandem_reward(folder, "my_reward.py:length", "--data", folder / "train.jsonl", "--model", model,
                                         "--no-chat", "--max-new-tokens", 4, "-n", 3, "--limit", 2, "--json")
    assert code == 0, errors
    assert [len(row["completions"]) for row in json.loads(output)["rows"]] == [3, 3]


def test_tandem_reward_says_what_is_wrong_with_a_function(folder):
    data = write_data(folder, [{"prompt": "one", "answer": "1"}])
    code, _, errors = tandem_reward(folder, "my_reward.py:letter", "--data", data)
    assert code == 2 and "has no letter; did you mean letters?" in errors
    code, _, errors = tandem_reward(folder, "my_reward", "--data", data)
    assert code == 2 and "want FILE.py:NAME" in errors


def render(folder, scheduler, function):
    config = folder / "run.yaml"
    config.write_text(json.dumps({"trainer": {
        "model": "/workspace/model", "data": {"train": "/workspace/train.jsonl"}, "run": {"out": "/workspace/runs"},
        "reward": {"python": function}}}), encoding="utf-8")
    done = subprocess.run([str(small_run.TANDEM), "render", scheduler, str(config), "--out", str(folder / "rendered")],
                          capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_rendered_runs_have_the_file_where_their_processes_see_it(folder):
    code, output = render(folder, "k8s", "/home/me/my_reward.py:score")
    assert code == 2 and "trainer.reward.python.functions is /home/me/my_reward.py, a path of this machine" in output
    code, output = render(folder, "k8s", "/workspace/my_reward.py:score")
    assert code == 0, output
    (folder / "rendered").rename(folder / "k8s")
    code, output = render(folder, "slurm", "/workspace/my_reward.py:score")
    assert code == 0, output
    assert "/workspace/my_reward.py" in next(line for line in (folder / "rendered").read_text().splitlines() if line.startswith("inputs="))
