"""Environments of the package verifiers, unchanged. The package and what it needs are installed by deploy/setup/install.sh --engines
into an environment of their own, because its versions are not those of .deps/venv."""
import json
import os

import pytest

from environment_worker import EnvironmentWorker, user

PYTHON = os.path.join(os.environ["TANDEM_SOURCE"], ".deps", "engines", "verifiers", "bin", "python")

ENVIRONMENTS = '''
import verifiers as vf
from datasets import Dataset

def right(completion, answer) -> float:
    return float(answer in completion[-1]["content"])

def single(rows=3, **kwargs):
    data = Dataset.from_list([{"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(rows)])
    return vf.SingleTurnEnv(dataset=data, system_prompt="Add.", rubric=vf.Rubric(funcs=[right], weights=[2.0]), **kwargs)

class Guess(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["secret"] = int(state["answer"])
        if state["secret"] == 99:
            raise vf.InfraError("no secret")

    @vf.stop
    async def is_right(self, state):
        return state.get("right", False)

    async def env_response(self, messages, state, **kwargs):
        said = messages[-1]["content"]
        if said == "crash":
            raise ValueError("why")
        if said == "rewrite":
            messages[0]["content"] = "Another prompt"
        guess = int(said) if said.isdigit() else 0
        state["right"] = guess == state["secret"]
        return [{"role": "user", "content": "right" if state["right"] else "higher" if guess < state["secret"] else "lower"}]

def tries(state) -> float:
    return float(len(state["trajectory"]))

def fails(completion) -> float:
    return 1.0 / (0 if "fail" in completion[-1]["content"] else 1)

async def found(state) -> float:
    return float(state.get("right", False))

def guess(max_turns=5):
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": "Guess."}], "answer": answer} for answer in ("7", "99")])
    return Guess(dataset=data, max_turns=max_turns, rubric=vf.Rubric(funcs=[found, tries, fails], weights=[1.0, 0.0, 0.0]))

async def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one number
        b: another
    """
    return a + b

def tools():
    data = Dataset.from_list([{"question": "1 + 2?", "answer": "3"}])
    return vf.ToolEnv(dataset=data, tools=[add], max_turns=4, rubric=vf.Rubric(funcs=[right]))

def groups():
    def best(completions) -> list[float]:
        return [1.0 for _ in completions]
    return vf.SingleTurnEnv(dataset=Dataset.from_list([{"question": "x", "answer": "y"}]), rubric=vf.Rubric(funcs=[best]))

def load_environment(**kwargs):
    return single(**kwargs)
'''
GUESS = {"prompt": [user("Guess.")], "answer": "7", "example_id": 0}


@pytest.fixture
def start(tmp_path):
    workers = []

    def make(name, **more):
        environment = {"kind": "verifiers", "spec": name}
        workers.append(EnvironmentWorker(tmp_path, environment, ENVIRONMENTS, python=PYTHON, **more))
        return workers[-1]
    yield make
    for worker in workers:
        worker.kill()


def test_an_environment_of_one_turn_is_scored_by_its_rubric(start):
    worker = start("my_env", kwargs={"rows": "2"})  # by id, as vf.load_environment finds it
    assert worker.hello == {"ready": True, "tools": []}, worker.hello
    rows = worker.rows(2)
    prompt = [{"role": "system", "content": "Add."}, user("1 + 1?")]
    assert rows[1]["row"] == {"question": "1 + 1?", "answer": "2", "example_id": 1, "prompt": prompt, "seed": 1}
    assert "has 2 rows, and row 2 was asked for" in worker.rows(3)[0]["error"]
    assert worker.open(row=rows[1]["row"], prompt="<|system|>Add.<|user|>1 + 1?") == {"episode": 1, "turn": 0, "messages": []}
    reply = worker.step("It is 2.")
    assert (reply["messages"], reply["reward"], reply["done"]) == ([], 2, True)
    assert reply["info"] == {"right": 1, "num_turns": 1}


def test_episodes_of_several_turns_are_played_beside_each_other(start):
    worker = start("my_env.py:guess")
    for number in (1, 2):
        assert worker.open(number, row=GUESS)["messages"] == []
    assert worker.step("5", 1, 1) == {"episode": 1, "turn": 1, "messages": [user("higher")], "reward": None, "done": False, "info": {}}
    assert worker.step("9", 1, 2)["messages"] == [user("lower")]
    assert worker.step("8", 2, 1)["messages"] == [user("lower")]
    # The environment says "right" before verifiers asks whether the rollout has ended: that is a turn of the model, as always there.
    assert worker.step("7", 2, 2)["messages"] == [user("right")]
    reply = worker.step("7", 3, 1, is_last=True)
    assert (reply["reward"], reply["done"], reply["messages"], reply["info"]) == (
        1, True, [], {"found": 1, "tries": 3, "fails": 1, "num_turns": 3})
    worker.close(2)
    assert worker.open(3, row=GUESS, history=[{"text": "5", "messages": [user("higher")]}])["turn"] == 0
    assert worker.step("1", 2, 3)["messages"] == [user("higher")]


def test_the_turns_of_the_environment_end_the_episode(start):
    worker = start("my_env.py:guess", kwargs={"max_turns": "2"})
    worker.open(row=GUESS)
    worker.step("5")
    reply = worker.step("6", 2)
    assert (reply["reward"], reply["done"], reply["info"]["tries"]) == (0, True, 2)


def test_errors_of_the_environment_are_no_rewards_of_0(start):
    worker = start("my_env.py:guess")
    worker.open(1, row=GUESS)
    assert worker.step("crash", 1, 1)["error"].startswith("ValueError: why (my_env.py:")
    worker.open(2, row=GUESS)
    assert "changed the messages before the last turn" in worker.step("rewrite", 1, 2)["error"]
    worker.open(3, row=GUESS)
    assert "Error calling reward function fails: float division by zero" in worker.step("fail", 1, 3, is_last=True)["error"]
    assert "InfraError: no secret" in worker.open(4, row={**GUESS, "answer": "99"})["error"]
    assert "the row has no prompt" in worker.open(5, row={"question": "x"})["error"]


def test_tools_of_the_environment_are_called(start):
    worker = start("my_env.py:tools")
    assert [tool["function"]["name"] for tool in worker.hello["tools"]] == ["add"]
    assert worker.hello["tools"][0]["function"]["parameters"]["required"] == ["a", "b"]
    worker.open(row=worker.rows(1)[0]["row"])

    def call(text):
        return f"I add.\n<tool_call>\n{text}\n</tool_call>"
    reply = worker.step(call(json.dumps({"name": "add", "arguments": {"a": 1, "b": 2}})))
    assert reply["messages"] == [{"role": "tool", "tool_call_id": "000000000", "name": "add", "content": "3"}], reply
    reply = worker.step(call('{"name": "add", "arguments": {"a": 1'), 2)
    assert reply["messages"][0]["role"] == "tool" and not reply["done"], reply
    reply = worker.step("It is 3.", 3)
    assert (reply["reward"], reply["done"]) == (1, True)
    assert reply["info"]["add_calls"] == 1 and reply["info"]["total_tool_calls"] == 2


@pytest.mark.parametrize("name, said", [
    ("my_env.py:groups", "its rubric scores whole groups"), ("not-there", "environment.verifiers: not-there raised"),
    ("my_env.py:right", "my_env.py:right raised TypeError"), ("my_env.py:ENVIRONMENTS", "has no ENVIRONMENTS")])
def test_what_cannot_be_loaded_is_named(start, name, said):
    assert said in start(name).hello["error"]
