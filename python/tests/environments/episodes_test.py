"""The process that plays environments (tandem_rl.environments.worker) with classes of users: what they get, what they may return,
and many episodes beside each other."""
import os
import signal

import pytest

from environment_worker import user
from waiting import wait_until

COUNT = '''
class Env:
    def __init__(self, limit=2):
        self.limit = limit
    def reset(self, seed, row):
        self.turns = 0
        self.seed = seed
    def step(self, text):
        self.turns += 1
        return f"{self.turns} {text} {self.seed}", self.turns / 2, self.turns == self.limit
'''
TRL = '''
class Env:
    def reset(self, **kwargs):
        self.secret = kwargs["secret"]
        self.reward = 0.0
    def guess(self, number: int) -> str:
        """
        Guesses the number.

        Args:
            number: The guess
        """
        self.reward = float(number == self.secret)
        return "right" if self.reward else "wrong"
    def get_reward(self):
        return self.reward
'''
STEPS = "class Env:\n  def reset(self): pass\n  def step(self, text): "


def is_alive(process):
    """Whether there is such a process and it is no zombie."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return ") Z" not in file.read()
    except OSError:
        return False


def test_an_episode_goes_from_reset_to_done(start):
    worker = start(COUNT)
    assert worker.hello == {"ready": True, "tools": []}
    assert worker.open(12) == {"episode": 12, "turn": 0, "messages": []}
    assert worker.step("a", 1, 12) == {"episode": 12, "turn": 1, "messages": [user("1 a 5")], "reward": 0.5, "done": False,
                                       "info": {}}
    assert worker.step("b", 2, 12) == {"episode": 12, "turn": 2, "messages": [user("2 b 5")], "reward": 1, "done": True, "info": {}}
    assert "none comes next" in worker.step("c", 3, 12)["error"]


def test_a_class_may_have_the_base_of_the_package(start):
    worker = start("from tandem_rl.environments import TextEnvironment\nclass Env(TextEnvironment):\n"
                   "  def step(self, text):\n    return None, len(text), True\n")
    assert worker.open(1) == {"episode": 1, "turn": 0, "messages": []}
    assert worker.step("four", 1, 1)["reward"] == 4


def test_episodes_beside_each_other_have_objects_of_their_own(start):
    worker = start(COUNT, kwargs={"limit": "3"})
    worker.open(1)
    worker.open(2, row={"seed": 9})
    assert worker.step("a", 1, 1)["messages"] == [user("1 a 5")]
    assert worker.step("b", 1, 2)["messages"] == [user("1 b 9")], "the seed of the row"
    assert worker.step("c", 2, 1)["messages"] == [user("2 c 5")]
    assert worker.step("d", 2, 2)["messages"] == [user("2 d 9")]


def test_a_step_that_waits_holds_up_no_other_episode(start):
    worker = start("import threading\nevent = threading.Event()\nclass Env:\n  def reset(self): pass\n  def step(self, text):\n"
                   "    if text == 'wait': event.wait()\n    if text == 'wake': event.set()\n    return text, None, False\n")
    worker.open(1)
    worker.open(2)
    worker.send("wait", number=1)
    assert worker.step("go on", number=2)["messages"] == [user("go on")]
    worker.send("wake", 2, 2)
    assert sorted(worker.read()["episode"] for _ in range(2)) == [1, 2]


def test_coroutines_of_episodes_wait_for_each_other(start):
    worker = start("import asyncio\nwaiting = 0\nclass Env:\n  async def reset(self): pass\n  async def step(self, text):\n"
                   "    global waiting\n    waiting += 1\n    while waiting < 3: await asyncio.sleep(0)\n    return text, 1, True\n"
                   "  async def close(self): print('closed', flush=True)\n")
    for number in (1, 2, 3):
        worker.open(number)
    for number in (1, 2, 3):
        worker.send("x", number=number)
    assert sorted(worker.read()["episode"] for _ in range(3)) == [1, 2, 3]
    worker.close(2)
    assert worker.process.stderr.readline() == "closed\n"


def test_reset_gets_what_it_names_and_kwargs_are_read_as_json(start):
    see = "class Env:\n  def __init__(self, words, size=1): self.made = (words, size)\n" \
          "  def reset(self, seed, row, level, *, more=4):\n" \
          "    return repr((self.made, seed, sorted(row), level, more))\n  def step(self, text): return None, 0, True\n"
    worker = start(see, kwargs={"words": '["x"]', "size": "two"})
    row = {"level": 3, "other": 1}
    assert worker.open(row=row)["messages"] == [user("((['x'], 'two'), 5, ['level', 'other'], 3, 4)")]
    every = "class Env:\n  def reset(self, **all): return repr(sorted(all.items()))\n  def step(self, text): return None, 0, True\n"
    assert start(every).open(row=row)["messages"] == [user("[('level', 3), ('other', 1), ('seed', 5)]")]
    odd = {"function": 1, "args": 2, "self": 3}
    assert start(every).open(row=odd)["messages"] == [user("[('args', 2), ('function', 1), ('seed', 5)]")]
    assert "Env.reset needs the argument level" in worker.open(2, row={})["error"]


def test_a_function_that_returns_a_class_is_told_what_it_should_return(start):
    worker = start(COUNT + "def make(): return Env\n", {"kind": "python", "spec": "my_env.py:make"})
    assert "my_env.py:make returned the class Env: name the class itself" in worker.open()["error"]


@pytest.mark.parametrize("returned, messages, reward, done, info", [
    ("('more', 0.5, False)", [user("more")], 0.5, False, {}),
    ("(None, 1, True)", [], 1, True, {}),
    ("('', None, True)", [], None, True, {}),
    ("({'role': 'tool', 'name': 'f', 'content': 'x'}, True, False)", [{"role": "tool", "name": "f", "content": "x"}], 1, False, {}),
    ("({'role': 'user', 'content': [{'type': 'text', 'text': 'x'}, {'type': 'text', 'text': 'y'}]}, 0, False)", [user("xy")], 0,
     False, {}),
    ("([{'role': 'user', 'content': 'x'}, {'role': 'user', 'content': 'y'}], 0, False)", [user("x"), user("y")], 0, False, {}),
    ("('x', 0, False, True, {'guesses': 2, 'won': True, 'name': 'n', 'nan': float('nan')})", [user("x")], 0, True,
     {"guesses": 2, "won": 1}),
    ("{'observation': 'x', 'reward': 2, 'done': False, 'info': {'a': 1}}", [user("x")], 2, False, {"a": 1}),
    ("{'messages': [{'role': 'user', 'content': 'x'}], 'done': False}", [user("x")], None, False, {}),
    ("('x', __import__('numpy').float32(0.5), __import__('numpy').bool_(False))", [user("x")], 0.5, False, {}),
])
def test_what_a_step_may_return(start, returned, messages, reward, done, info):
    worker = start(f"{STEPS}return {returned}\n")
    worker.open()
    assert worker.step("a") == {"episode": 1, "turn": 1, "messages": messages, "reward": reward, "done": done, "info": info}


@pytest.mark.parametrize("returned, said", [
    ("'text'", "Env.step returned 'text', str: want (observation, reward, done)"),
    ("('a', 1)", "Env.step returned 2 values: want (observation, reward, done)"),
    ("('a', 'b', False)", "the reward of Env.step is 'b', str: want a finite number"),
    ("('a', float('nan'), False)", "the reward of Env.step is nan, float: want a finite number"),
    ("('a', 1, 0)", "done of Env.step is 0, int: want True or False"),
    ("(None, 1, False)", "Env.step returned no observation (None) and is not done"),
    ("(3, 1, False)", "the observation of Env.step is 3, int: want text, a message"),
    ("({'role': 'user', 'content': [{'type': 'image'}]}, 1, False)", "whose content is list: want text"),
    ("([{'role': 'user'}], 1, False)", "message 0 of the observation of Env.step is the message {'role': 'user'}, whose content is "
     "NoneType"),
    ("{'obs': 'x', 'done': True}", "Env.step returned a dict with the key obs"),
    ("{'observation': 'x'}", "Env.step returned a dict without done"),
])
def test_what_it_may_not_return_ends_the_episode_and_says_what_is_wanted(start, returned, said):
    worker = start(f"{STEPS}return {returned}\n")
    worker.open()
    reply = worker.step("a")
    assert said in reply["error"] and reply["turn"] == 1, reply
    assert worker.open(2)["turn"] == 0, "other episodes go on"


def test_what_raises_is_told_with_its_line(start):
    worker = start("class Env:\n  def reset(self, row):\n    if row: raise KeyError('x')\n  def step(self, text):\n"
                   "    if text == 'exit': raise SystemExit(3)\n    if text == 'stop': next(iter(()))\n"
                   "    raise ValueError('why')\n")
    assert worker.open(1, row={"a": 1})["error"] == "KeyError: 'x' (my_env.py:3)"
    for number, text, said in ((2, "go", "ValueError: why (my_env.py:7)"), (3, "exit", "SystemExit: 3 (my_env.py:5)"),
                               (4, "stop", "StopIteration (my_env.py:6)")):
        worker.open(number)
        reply = worker.step(text, number=number)
        assert reply["error"] == said and reply["turn"] == 1
        assert "my_env.py" in reply["traceback"] and "episode.py" not in reply["traceback"]
    assert "not open" in worker.step("again", 2, 2)["error"]


@pytest.mark.parametrize("text, spec, said", [
    ("class Env:\n  def reset(self): pass\n  def step(self text): pass\n", "Env", "SyntaxError"),
    ("class Env:\n  def reset(self): pass\n", "Env", "my_env.py:Env has no step: want a class with reset and step(text)"),
    ("class Env:\n  def step(self, text): pass\n", "Env", "my_env.py:Env has no reset"),
    ("class Env:\n  def reset(self): pass\n  def step(self): pass\n", "Env", "has step(self): want step(self, text)"),
    ("class Env:\n  def reset(self): pass\n  def step(self, t): pass\nenv = Env()\n", "env", "is an object: name its class Env"),
    ("class Environment: pass\n", "Environmemt", "did you mean Environment?"),
    ("Env = 3\n", "Env", "is an int: want a class"),
    ("raise RuntimeError('no')\n", "Env", "cannot be imported: RuntimeError: no (my_env.py:1)"),
])
def test_what_is_no_environment_is_named_before_anything_else_starts(start, text, spec, said):
    worker = start(text, {"kind": "python", "spec": f"my_env.py:{spec}"})
    assert said in worker.hello["error"], worker.hello
    assert worker.process.wait(timeout=60) == 2


def test_arguments_that_do_not_fit_are_named(start):
    assert "does not take lowest; it takes limit" in start(COUNT, kwargs={"lowest": "1"}).hello["error"]
    needs = "class Env:\n  def __init__(self, size): pass\n  def reset(self): pass\n  def step(self, t): pass\n"
    assert "missing a required argument: 'size'" in start(needs).hello["error"]
    assert start(needs, {"kind": "python", "spec": "my_env.py:Env(size=3)"}).hello["ready"]


def test_a_function_may_return_the_object(start):
    worker = start(COUNT + "def make(limit): return Env(limit)\n", {"kind": "python", "spec": "my_env.py:make"}, kwargs={"limit": "1"})
    worker.open()
    assert worker.step("a")["done"]
    worker = start(COUNT + "def nothing(): return 3\n", {"kind": "python", "spec": "my_env.py:nothing"})
    assert "my_env.py:nothing returned an int, which has no reset" in worker.open()["error"]
    without_hint = TRL.replace("number: int", "number") + "def make(): return Env()\n"
    reply = start(without_hint, {"kind": "python", "spec": "my_env.py:make"}).open()
    assert reply["error"].startswith("Env.guess cannot be a tool: its argument number has no hint of its type"), reply


def test_a_last_turn_is_judged_and_not_answered(start):
    worker = start(COUNT, kwargs={"limit": "9"})
    worker.open()
    assert worker.step("a", is_last=True) == {"episode": 1, "turn": 1, "messages": [], "reward": 0.5, "done": True, "info": {}}


def test_an_episode_that_moves_is_played_again(start):
    history = [{"text": "a", "messages": [user("1 a 5")]}, {"text": "b", "messages": [user("2 b 5")]}]
    worker = start(COUNT, kwargs={"limit": "9"})
    assert worker.open(history=history) == {"episode": 1, "turn": 0, "messages": []}
    assert worker.step("c", 3)["messages"] == [user("3 c 5")]
    reply = worker.open(2, history=history, seed=6)
    assert reply["turn"] == 0 and "did not repeat itself" in reply["error"] and "1 a 6" in reply["error"]


def test_the_first_observation_stands_in_the_prompt(start):
    worker = start("class Env:\n  def reset(self, seed): return f'Number {seed}? '\n  def step(self, text): return None, 0, True\n")
    assert worker.open(1, prompt="<|user|>Number 5?<|end|>") == {"episode": 1, "turn": 0, "messages": [user("Number 5? ")]}
    assert "reset gave a first observation that the prompt does not have" in worker.open(2, prompt="Number 6?")["error"]
    assert worker.rows(2, 7) == [{"row": {"prompt": [user("Number 7? ")], "answer": "", "seed": 7}},
                                 {"row": {"prompt": [user("Number 8? ")], "answer": "", "seed": 8}}, {"rows": 2}]


def test_reset_may_return_what_gymnasium_has(start):
    worker = start("class Env:\n  def reset(self, *, seed=None, options=None): return f'at {seed}', {'info': options}\n"
                   "  def step(self, action): return 'x', 0.5, False, False, {'size': 2}\n")
    assert worker.open()["messages"] == [user("at 5")]
    reply = worker.step("a")
    assert (reply["messages"], reply["reward"], reply["done"], reply["info"]) == ([user("x")], 0.5, False, {"size": 2})


def test_rows_need_a_first_observation(start):
    assert "gave no first observation for the seed 0" in start(COUNT).rows(1)[0]["error"]


def test_close_is_called_once_whatever_ended_the_episode(start):
    worker = start("import sys\nclass Env:\n  def reset(self, row): self.name = row['name']\n  def step(self, text):\n"
                   "    if text == 'raise': raise ValueError\n    return None, 0, True\n  def close(self): print('close', self.name)\n")
    worker.open(1, row={"name": "one"})
    worker.step("a")
    worker.close(1)
    assert worker.process.stderr.readline() == "close one\n"
    worker.open(2, row={"name": "two"})
    assert worker.step("raise", number=2)["error"] == "ValueError (my_env.py:5)"
    assert worker.process.stderr.readline() == "close two\n"
    worker.close(2)
    worker.open(3, row={"name": "three"})
    worker.close(3)
    assert worker.process.stderr.readline() == "close three\n"


def test_a_step_that_was_given_up_is_not_answered_and_its_object_closed(start):
    worker = start("import threading\nevent = threading.Event()\nclass Env:\n  def reset(self): pass\n  def step(self, text):\n"
                   "    if text == 'wake': event.set()\n    else: print('waits')\n    event.wait()\n    return text, 0, False\n"
                   "  def close(self): print('closed')\n")
    worker.open(1)
    worker.send("wait")
    assert worker.process.stderr.readline() == "waits\n"
    worker.close(1)
    worker.open(2)
    assert worker.step("wake", number=2)["messages"] == [user("wake")]
    assert worker.process.stderr.readline() == "closed\n", "after the step, in the thread of the episode"
    assert worker.step("wake", 2, 2)["turn"] == 2, "and no reply of the first came between"


def test_what_an_environment_prints_is_no_reply(start):
    worker = start("import sys, os\nclass Env:\n  def reset(self): print('printed')\n"
                   "  def step(self, text):\n    os.write(1, b'written\\n')\n    sys.stdout.close()\n    return text, 0, False\n")
    assert worker.open()["turn"] == 0
    assert worker.step("a")["messages"] == [user("a")]
    assert [worker.process.stderr.readline() for _ in range(2)] == ["printed\n", "written\n"]


def test_a_worker_whose_trainer_has_gone_ends_with_what_it_started(start, tmp_path):
    worker = start("import subprocess\nclass Env:\n  def reset(self): pass\n  def step(self, text):\n"
                   "    child = subprocess.Popen(['sleep', '600'])\n    open('child', 'w').write(str(child.pid))\n"
                   "    print('asleep')\n    child.wait()\n")
    worker.open()
    worker.send("a")
    assert worker.process.stderr.readline() == "asleep\n"
    child = (tmp_path / "child").read_text(encoding="utf-8")
    os.close(worker.to_worker)
    assert worker.process.wait(timeout=60) == -signal.SIGKILL
    wait_until(lambda: not is_alive(child), "the child of an environment that was killed")


def test_an_environment_as_trl_takes_it_runs_unchanged(start):
    worker = start(TRL)
    assert worker.hello["tools"] == [{"type": "function", "function": {
        "name": "guess", "description": "Guesses the number.", "return": {"type": "string"}, "parameters": {
            "type": "object", "required": ["number"], "properties": {"number": {"type": "integer", "description": "The guess"}}}}}]
    assert worker.open(row={"secret": 7})["messages"] == []
    call = '<tool_call>\n{"name": "guess", "arguments": {"number": 7}}\n</tool_call>'
    assert worker.step(call) == {
        "episode": 1, "turn": 1, "reward": None,
        "messages": [{"role": "tool", "name": "guess", "tool_call_id": "000000000", "content": "right"}],
        "done": False, "info": {"tool_calls": 1, "tool_errors": 0, "malformed_calls": 0}}
    reply = worker.step("It is 7.", 2)
    assert (reply["reward"], reply["done"], reply["messages"]) == (1, True, [])
    worker.open(2, row={"secret": 7})
    assert worker.step(call, number=2, is_last=True)["reward"] == 1


def test_the_example_guesses_numbers(start):
    file = os.path.join(os.environ["TANDEM_SOURCE"], "examples", "guess_number.py")
    worker = start("", {"kind": "python", "spec": f"{file}:GuessTheNumber"}, kwargs={"highest": "3"})
    worker.open(row={"secret": 7})
    said = [worker.step(text, turn) for turn, text in enumerate(("I say 5", "9?", "none", "<think>6</think>7"), 1)]
    assert [reply["messages"] for reply in said] == [[user("higher")], [user("lower")], [user("Please guess a whole number.")], []]
    assert [reply["reward"] for reply in said] == [0, 0, 0, 1] and [reply["done"] for reply in said] == [False, False, False, True]
    worker.open(2, seed=4)  # random.Random(4).randint(1, 3) is 1
    assert worker.step("1", 1, 2)["done"]
