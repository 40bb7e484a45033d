"""Runs of two steps whose completions an environment plays, well-behaved and not: what it says is given to the model and is
not trained, and a fault costs the completion that it is about and nothing else (the ledger and conftest.py's history
check). tests/trainer/environments has the faults one by one."""
import json
import os
import random
import signal
import subprocess

import pytest

import small_run
from waiting import wait_until

PYTHON = small_run.SOURCE / ".deps" / "venv" / "bin" / "python"
ASK = "Guess a number from 1 to 4."

ENVIRONMENTS = '''
import os, signal, threading
HERE = os.path.dirname(os.path.abspath(__file__))

def first(name):
    """Whether this is the first time of all for the fault `name`."""
    try:
        os.close(os.open(os.path.join(HERE, name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

class Guess:
    fault = None

    def reset(self, row):
        self.secret = row["secret"]
        self.turns = 0

    def step(self, text):
        self.turns += 1
        if self.fault is not None and self.turns == 2:
            self.fault()
        if text.strip() == str(self.secret):
            return None, 1, True, False, {"guesses": self.turns}
        return "no", 0, False, False, {"guesses": self.turns}

class Raises(Guess):
    def fault(self):
        if self.secret == 2: raise ValueError("no more guesses")

class Dies(Guess):
    def fault(self):
        if self.secret == 2: os._exit(3)

class KilledOnce(Guess):
    def fault(self):
        if first("killed"): os.kill(os.getpid(), signal.SIGKILL)

class Hangs(Guess):
    def fault(self):
        if first("hangs"): threading.Event().wait()

class Eats(Guess):
    def fault(self):
        if self.secret == 2:
            self.held = bytearray(b"x") * (700 << 20)
            threading.Event().wait()

class Wrong(Guess):
    def step(self, text):
        return {"answer": "no"} if self.secret == 2 else Guess.step(self, text)

class BadReset(Guess):
    def reset(self, row):
        Guess.reset(self, row)
        if self.secret == 2: raise KeyError("level")

class AllFail(Guess):
    def step(self, text):
        raise RuntimeError("the game server is down")
'''


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A small model that guesses and ends its turns: a fresh one after a short warm-up."""
    folder = tmp_path_factory.mktemp("talker")
    draw = random.Random(1)
    with open(folder / "warm.jsonl", "w", encoding="utf-8") as file:
        for _ in range(300):
            messages = [{"role": "user", "content": ASK}]
            for _ in range(3):
                messages = [*messages, {"role": "assistant", "content": str(draw.randint(1, 4))}]
                file.write(json.dumps({"messages": messages}) + "\n")
                messages = [*messages, {"role": "user", "content": "no"}]
    (folder / "text.txt").write_text(f"{ASK} no 1 2 3 4\n" * 50, encoding="utf-8")
    for arguments in (["init", "--out", "fresh", "--text", "text.txt", "--vocab", "290", "--hidden", "32", "--layers", "2",
                       "--heads", "2", "--kv-heads", "1", "--intermediate", "64", "--context", "256", "--seed", "1"],
                      ["sft", "--model", "fresh", "--data", "warm.jsonl", "--out", "warm", "--epochs", "4", "--lr", "5e-3"]):
        subprocess.run([str(small_run.TANDEM), *arguments], cwd=folder, check=True, timeout=200, capture_output=True)
    return folder / "warm"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "env.py").write_text(ENVIRONMENTS, encoding="utf-8")
    return tmp_path


def write_config(folder, model, kind="Guess", trainer=None, **environment):
    with open(folder / "guess.jsonl", "w", encoding="utf-8") as file:
        for i in range(12):
            file.write(json.dumps({"prompt": ASK, "secret": 1 + i % 4}) + "\n")
    return small_run.write_config(folder, model, **{
        "steps": 2, "reward": {}, "data": {"train": str(folder / "guess.jsonl"), "columns": {"answer": ""}},
        "environment": {"python": f"{folder}/env.py:{kind}", "interpreter": str(PYTHON), "max_turns": 3,
                        "max_completion_tokens": 120, **environment}, **(trainer or {})})


def run(folder, model, kind="Guess", *arguments, **environment):
    return small_run.run(write_config(folder, model, kind, **environment), *arguments)


def completions(folder):
    return [completion for step in (1, 2) for group in small_run.rollouts(folder, step)
            for completion in group["completions"]]


def masked(folder):
    return {completion["drop_reason"] for completion in completions(folder) if completion["drop_reason"]}


def test_turns_are_played_rewarded_and_trained_and_what_was_given_is_not(folder, talker):
    code, output = run(folder, talker, trainer={"capture": {"every": 1}})
    assert code == 0, output
    assert masked(folder) == set()
    small_run.check_ledger(folder)
    for line in small_run.steps(folder):
        assert line["turns/mean"] > 1 and line["turns/max"] == 3
        assert line["reward/part/environment"] == line["reward/mean"]
        assert 1 <= line["reward/part/environment/guesses"] <= 3
        assert set(line["drift/by_turn"]) == {"1", "2", "3"}
    for completion in completions(folder):
        segments = completion.get("segments", [])
        position = 0
        for kind, count in segments:
            given = completion["behaviour_logprobs"][position:position + count]
            assert all((value is None) == (kind == "given") for value in given)
            position += count
        assert position in (0, len(completion["token_ids"]))
        # The model's last turn was right, or the environment said no to it.
        turns = 1 + len(segments) // 2
        assert completion["reward"] in (0, 1)
        assert completion["reward"] == 1 or turns == 3 or completion["text"].count("no") == turns - 1


class_of_turns = """
class Guess:
    def reset(self, row):
        self.secret = row["secret"]
    def step(self, text):
        return (None, 1, True) if text.strip() == str(self.secret) else ("no", -0.25, False)
"""


@pytest.mark.parametrize("kind", ["group_norm", "leave_one_out", "none"])
def test_rewards_of_turns_belong_to_their_last_tokens(folder, talker, kind):
    (folder / "env.py").write_text(class_of_turns, encoding="utf-8")
    code, output = run(folder, talker, turn_rewards="per_turn", trainer={"advantage": {"kind": kind}})
    assert code == 0, output
    small_run.check_ledger(folder)
    seen = set()
    for completion in completions(folder):
        segments = completion.get("segments", [["drawn", len(completion["token_ids"])]])
        ends = [sum(count for _, count in segments[:i + 1]) for i, (what, _) in enumerate(segments) if what == "drawn"]
        rewards = completion["token_rewards"]
        assert [rewards[end - 1] for end in ends[:-1]] == [-0.25] * (len(ends) - 1)
        assert rewards[-1] in (-0.25, 1) and sum(rewards) == pytest.approx(completion["reward"])
        assert sum(map(bool, rewards)) == len(ends)
        seen.add(len(ends))
    assert len(seen) > 1, "episodes of several lengths"


def test_completions_of_several_turns_make_pairs(folder, talker):
    (folder / "env.py").write_text(class_of_turns, encoding="utf-8")
    code, output = run(folder, talker, trainer={"preset": "online_dpo", "prompts_per_step": 8, "completions_per_prompt": 2})
    assert code == 0, output
    small_run.check_ledger(folder)
    assert any(line["turns/max"] > 1 and line["pairs/count"] > 0 for line in small_run.steps(folder))


def test_a_dry_run_loads_the_environment(folder, talker):
    code, output = run(folder, talker, "Guess", "--dry-run")
    assert code == 0, output
    assert "3 turns" in output or "12 to train on" in output
    code, output = run(folder, talker, "Gess", "--dry-run")
    assert code == 2 and "did you mean Guess" in output, output


@pytest.mark.parametrize("kind, reason", [
    ("Raises", "environment_failed: ValueError: no more guesses (env.py:"),
    ("Dies", "environment_failed: environment worker ended (exit code 3)"),
    ("Wrong", "environment_failed: "),
    ("BadReset", "environment_failed: KeyError: 'level' (env.py:"),
])
def test_a_fault_masks_the_completions_that_it_is_about(folder, talker, monkeypatch, kind, reason):
    monkeypatch.chdir(folder)
    code, output = run(folder, talker, kind)
    assert code == 0, output
    found = masked(folder)
    assert found and all(each.startswith(reason) for each in found), found
    # Groups of another secret are untouched.
    for step in (1, 2):
        for group in small_run.rollouts(folder, step):
            secret = 1 + group["prompt_index"] % 4
            assert secret == 2 or not any(c["drop_reason"] for c in group["completions"])
    assert len(small_run.steps(folder)) == 2
    assert small_run.events(folder, "environment_failed")
    shown = [line for line in output.splitlines() if line.startswith(("environment_failed: ", "masked: environment_failed "))]
    assert len(shown) == 2 and shown[0].startswith(reason), output
    assert sum(line["turns/failed"] for line in small_run.steps(folder)) == \
        sum(bool(completion["drop_reason"]) for completion in completions(folder))
    small_run.check_ledger(folder)


def test_a_process_that_is_killed_once_loses_nothing(folder, talker):
    code, output = run(folder, talker, "KilledOnce")
    assert code == 0, output
    assert masked(folder) == set()
    small_run.check_ledger(folder)


@pytest.mark.parametrize("kind, limit, reason", [
    ("Hangs", {"step_timeout_seconds": 3}, "more than 3 s (environment.step_timeout_seconds)"),
    ("Eats", {"memory_limit_mib": 400}, "more than 400 MiB (environment.memory_limit_mib)"),
])
def test_a_limit_ends_the_completion_that_breaks_it(folder, talker, kind, limit, reason):
    code, output = run(folder, talker, kind, **limit)
    assert code == 0, output
    found = masked(folder)
    assert found == {f"environment_failed: the environment took {reason}"}
    if kind == "Hangs":
        assert sum(bool(c["drop_reason"]) for c in completions(folder)) == 1
    small_run.check_ledger(folder)


def test_an_environment_that_always_fails_ends_the_run_and_says_why(folder, talker):
    code, output = run(folder, talker, "AllFail", trainer={"max_skipped_steps": 1})
    assert code == 8, output
    assert "RuntimeError: the game server is down" in output


@pytest.mark.parametrize("text, said", [
    ("class Guess(:\n", "SyntaxError"),
    ("import no_such_package\n", "No module named 'no_such_package'"),
    ("class Gess: pass\n", "has no Guess; did you mean Gess?"),
    ("class Guess:\n  def reset(self): pass\n", "step"),
])
def test_an_environment_that_cannot_be_loaded_ends_the_start(folder, talker, text, said):
    (folder / "env.py").write_text(text, encoding="utf-8")
    code, output = run(folder, talker)
    assert code == 2, output
    assert said in output
    assert not (folder / "runs" / "small").exists(), "nothing was started"


def test_a_deterministic_run_repeats_itself(folder, talker, tmp_path_factory):
    def texts(**trainer):
        place = tmp_path_factory.mktemp("run")
        (place / "env.py").write_text(ENVIRONMENTS, encoding="utf-8")
        config = write_config(place, talker, trainer={"deterministic": True, "numerics": "invariant", **trainer})
        config_json = json.loads(config.read_text())
        config_json["server"]["engine"]["numerics"] = "invariant"
        config.write_text(json.dumps(config_json))
        code, output = small_run.run(config)
        assert code == 0, output
        return [[(c["token_ids"], c["reward"]) for c in group["completions"]] for step in (1, 2)
                for group in small_run.rollouts(place, step)]
    assert texts() == texts()
    (folder / "env.py").write_text(ENVIRONMENTS, encoding="utf-8")
    code, output = run(folder, talker, trainer={"deterministic": True})
    assert code == 2 and "numerics invariant or exact" in output


def test_a_killed_run_goes_on_and_loses_nothing(folder, talker):
    config = write_config(folder, talker, trainer={"steps": 6, "checkpoint": {"every": 1}})
    process = subprocess.Popen([str(small_run.TANDEM), "run", str(config)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    metrics = folder / "runs" / "small" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(small_run.steps(folder)) >= 2, "two steps")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    code, output = small_run.run(config, "--resume")
    assert code == 0, output
    assert small_run.steps(folder)[-1]["step"] == 6
    small_run.check_ledger(folder)


SLOW = """
import os, threading
HERE = os.path.dirname(os.path.abspath(__file__))
def slow(completions, **kwargs):
    open(os.path.join(HERE, "asked"), "a").close()
    if not os.path.exists(os.path.join(HERE, "go_on")):
        threading.Event().wait(2)
    return [0.5 for _ in completions]
"""


def test_a_trainer_that_is_killed_before_its_first_checkpoint_plays_again_what_the_server_has_finished(folder, talker):
    (folder / "slow.py").write_text(SLOW, encoding="utf-8")
    reward = {"weights": {"environment": 1, "slow": 1}, "python": {"functions": f"{folder}/slow.py:slow", "interpreter": str(PYTHON)}}
    config = write_config(folder, talker, trainer={"reward": reward})
    with open(folder / "output", "w", encoding="utf-8") as output:
        process = subprocess.Popen([str(small_run.TANDEM), "run", str(config)], stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    wait_until(lambda: (folder / "asked").exists(), "the first group that was sampled")
    (folder / "go_on").touch()
    trainers = [entry for entry in os.listdir("/proc") if entry.isdigit() and is_trainer_of(entry, process.pid)]
    assert len(trainers) == 1
    os.kill(int(trainers[0]), signal.SIGKILL)
    try:
        assert process.wait(timeout=120) == 0, (folder / "output").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert masked(folder) == set()
    for completion in completions(folder):
        assert completion["reward"] in (0.5, 1.5)
    small_run.check_ledger(folder)


def is_trainer_of(pid, launcher):
    """Whether the process is the trainer that the launcher started."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            name = file.read().split(") ")[0]
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            parent = next(line for line in file if line.startswith("PPid:")).split()[1]
    except (OSError, StopIteration):
        return False
    return name.endswith("(trainer") and int(parent) == launcher
