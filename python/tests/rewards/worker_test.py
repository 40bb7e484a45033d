"""The process that runs reward functions (tandem_rl.rewards.worker), spoken with as the trainer does: what functions get, in
TRL's form, and what they may return. TRL's own rewards run unchanged."""
import inspect
import json
import os
import signal
import subprocess
import sys

import pytest

from waiting import wait_until

PACKAGE = os.path.join(os.environ["TANDEM_SOURCE"], "python")


class Worker:
    """A worker with functions of `text`, written to my_reward.py of `folder`."""

    def __init__(self, folder, text, functions, kwargs=None, completions="auto", row=None):
        (folder / "my_reward.py").write_text(text, encoding="utf-8")
        to_worker, self.to_worker = os.pipe()
        from_worker, to_us = os.pipe()
        script = f"exec {sys.executable} -m tandem_rl.rewards.worker 3<&{to_worker} 4>&{to_us}"
        self.process = subprocess.Popen(["bash", "-c", script], cwd=folder, env={**os.environ, "PYTHONPATH": PACKAGE},
                                        pass_fds=(to_worker, to_us), start_new_session=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        os.close(to_worker)
        os.close(to_us)
        self.replies = os.fdopen(from_worker, encoding="utf-8")
        self.write({"functions": [{"name": spec.rsplit(":", 1)[1], "spec": spec} for spec in functions],
                    "kwargs": kwargs or {}, "completions": completions, "row": row})
        self.hello = json.loads(self.replies.readline())

    def write(self, line):
        os.write(self.to_worker, (json.dumps(line) + "\n").encode())

    def ask(self, *groups, function=0):
        """The replies about groups, by id."""
        self.write({"function": function, "groups": groups})
        replies = [json.loads(self.replies.readline()) for _ in groups]
        return {reply["id"]: reply for reply in replies}

    def rewards(self, source, texts, function=0, **more):
        reply = self.ask(group(source, texts, **more), function=function)[1]
        return [reward and reward.get("reward", reward.get("error")) for reward in reply["rewards"]]

    def end(self):
        os.close(self.to_worker)
        self.replies.close()
        output, _ = self.process.communicate(timeout=60)
        return output


def is_alive(process):
    """Whether there is such a process and it is no zombie."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return ") Z" not in file.read()
    except OSError:
        return False


def group(source, texts, ids=None, number=1, step=3):
    return {"id": number, "prompt": "<rendered>", "answer": "7", "source": source, "step": step, "num_steps": 9,
            "completions": [{"text": text, "ids": (ids or {}).get(text, [1, 2]), "truncated": False} for text in texts]}


@pytest.fixture
def start(tmp_path):
    workers = []

    def make(text, functions=("my_reward.py:score",), **more):
        workers.append(Worker(tmp_path, text, functions, **more))
        return workers[-1]
    yield make
    for worker in workers:
        if worker.process.poll() is None:
            os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()


SEE = "import json\ndef score(**kwargs):\n  kwargs = {k: v for k, v in kwargs.items() if not callable(v)}\n" \
      "  kwargs['trainer_state'] = vars(kwargs['trainer_state'])\n  raise ValueError(json.dumps(kwargs))\n"


def seen(worker, source):
    """What a function was given."""
    error = worker.rewards(source, ["one"])[0]
    return json.loads(error[error.index("{"):error.rindex("}") + 1])


def test_a_plain_prompt_gives_texts_and_the_columns_as_lists(start):
    got = seen(start(SEE), {"prompt": "What?", "answer": "7", "level": 2, "completion": "left out"})
    assert got == {"prompts": ["What?"], "completions": ["one"], "completion_ids": [[1, 2]], "answer": ["7"], "level": [2],
                   "trainer_state": {"global_step": 3, "max_steps": 9}}


def test_a_class_may_have_the_base_of_the_package(start):
    worker = start("from tandem_rl.rewards import Reward\nclass Longer(Reward):\n  def __init__(self, most): self.most = most\n"
                   "  def __call__(self, completions, **kwargs): return [float(len(text) > self.most) for text in completions]\n",
                   ("my_reward.py:Longer(most=3)",))
    assert worker.hello == {"ready": True}
    assert worker.rewards({"prompt": "What?"}, ["one", "seven"]) == [0, 1]


def test_a_prompt_of_messages_gives_messages_as_in_trl(start):
    messages = [{"role": "user", "content": "What?"}]
    got = seen(start(SEE), {"prompt": messages, "solution": "7"})
    assert got["prompts"] == [messages] and got["completions"] == [[{"role": "assistant", "content": "one"}]]
    assert got["solution"] == ["7"] and got["answer"] == ["7"]
    forced = seen(start(SEE, completions="messages"), {"question": "What?", "answer": "#### 7"})
    assert forced["prompts"] == [messages] and forced["completions"] == [[{"role": "assistant", "content": "one"}]]
    assert forced["answer"] == ["#### 7"], "the column as it is in the data"


def test_a_completion_of_several_turns_comes_as_its_messages(start):
    turns = [{"role": "assistant", "content": "5"}, {"role": "user", "content": "higher"}, {"role": "assistant", "content": "7"}]
    played = group({"prompt": "Guess."}, ["5 user higher 7"])
    played["completions"][0]["messages"] = turns
    error = start(SEE).ask(played)[1]["rewards"][0]["error"]
    got = json.loads(error[error.index("{"):error.rindex("}") + 1])
    assert got["completions"] == [turns] and got["prompts"] == [[{"role": "user", "content": "Guess."}]]
    error = start(SEE, completions="text").ask(played)[1]["rewards"][0]["error"]
    assert json.loads(error[error.index("{"):error.rindex("}") + 1])["completions"] == ["5 user higher 7"]


def test_the_arguments_are_those_of_the_installed_trl():
    """GRPOTrainer._calculate_rewards gives rewards these beside the columns."""
    grpo = pytest.importorskip("trl.trainer.grpo_trainer")
    text = inspect.getsource(grpo.GRPOTrainer._calculate_rewards)
    for name in ("prompts=prompts", "completions=completions", "completion_ids=completion_ids_list", '"trainer_state"]', '"log_extra"]',
                 '"log_metric"]'):
        assert name in text


def test_a_function_gets_only_what_it_names(start):
    worker = start("def score(completions, level=0, *, answer): return [float(a) + l for a, l in zip(answer, level)]\n")
    assert worker.rewards({"prompt": "x", "answer": "3", "level": 1, "other": 5}, ["a"]) == [4]


def test_coroutines_of_all_groups_of_a_batch_run_beside_each_other(start):
    # Each waits until all three have begun: one after the other they would wait for ever.
    worker = start("import asyncio\nbegun = 0\nasync def score(completions, **kwargs):\n"
                   "  global begun\n  begun += 1\n  while begun < 3: await asyncio.sleep(0)\n  return [1.0 for c in completions]\n")
    replies = worker.ask(*(group({"prompt": "x"}, ["a"], number=number) for number in (1, 2, 3)))
    assert sorted(replies) == [1, 2, 3]


def test_a_plain_function_may_start_an_event_loop_of_its_own(start):
    worker = start("import asyncio\nasync def one(): return 1.0\n"
                   "def score(completions): return [asyncio.run(one()) for c in completions]\n")
    assert worker.rewards({"prompt": "x"}, ["a", "b"]) == [1, 1]


def test_numbers_of_numpy_and_torch_are_rewards(start):
    worker = start("import numpy as np\nimport torch\n"
                   "def array(completions): return np.array([1, 2], dtype=np.float32)\n"
                   "def scalars(completions): return [np.float64(0.5), torch.tensor(3.0)]\n"
                   "def flags(completions): return [True, False]\n",
                   [f"my_reward.py:{name}" for name in ("array", "scalars", "flags")])
    assert [worker.rewards({"prompt": "x"}, ["a", "b"], function=i) for i in range(3)] == [[1, 2], [0.5, 3], [1, 0]]


def test_arguments_of_the_run_file_reach_those_that_take_them(start):
    worker = start("def a(completions, size): return [size for c in completions]\n"
                   "def b(completions, words=()): return [len(words) for c in completions]\n",
                   ["my_reward.py:a", "my_reward.py:b"], kwargs={"size": "3", "b.words": '["x", "y"]'})
    assert worker.rewards({"prompt": "x"}, ["t"], function=0) == [3]
    assert worker.rewards({"prompt": "x"}, ["t"], function=1) == [2]


def test_the_worker_survives_what_a_function_prints_and_closes(start):
    worker = start("import os, sys\ndef score(completions):\n  print('to the log')\n  sys.stdout.close()\n"
                   "  return [1 for c in completions]\n")
    assert worker.rewards({"prompt": "x"}, ["a"]) == [1]
    assert "to the log" in worker.end()


def test_a_worker_whose_trainer_has_gone_ends_with_what_it_started(start, tmp_path):
    worker = start("import subprocess, time\ndef score(completions):\n  child = subprocess.Popen(['sleep', '600'])\n"
                   "  open('child', 'w').write(str(child.pid))\n  print('asleep', flush=True)\n  child.wait()\n")
    worker.write({"function": 0, "groups": [group({"prompt": "x"}, ["a"])]})
    assert worker.process.stdout.readline() == "asleep\n"
    child = (tmp_path / "child").read_text(encoding="utf-8")
    os.close(worker.to_worker)
    assert worker.process.wait(timeout=60) == -signal.SIGKILL
    wait_until(lambda: not is_alive(child), "the child of a function that was killed")


@pytest.mark.parametrize("text, said", [
    ("class score: pass\n", "is a class: name an object of it"),
    ("def score(completions, /): pass\n", "can only be given by position"),
    ("raise SystemExit('no')\n", "cannot be imported: SystemExit: no (my_reward.py:1)"),
    ("score = len\n", "can only be given by position"),
])
def test_what_cannot_be_called_is_named(start, text, said):
    assert said in start(text).hello["error"]


def test_rewards_of_trl_run_unchanged(start):
    pytest.importorskip("trl")
    row = {"prompt": [{"role": "user", "content": "half?"}], "solution": r"\frac{1}{2}"}
    worker = start("", ["trl.rewards:accuracy_reward", "trl.rewards:reasoning_accuracy_reward", "trl.rewards:think_format_reward",
                        "trl.rewards:get_soft_overlong_punishment(max_completion_len=3, soft_punish_cache=2)",
                        "trl.rewards:get_repetition_penalty_reward(ngram_size=2)",
                        "trl.rewards:get_cosine_scaled_reward(max_len=4)"], row=row)
    assert worker.hello == {"ready": True}, worker.hello
    right, thought, wrong = r"\boxed{0.5}", "<think>a</think>\n$\\boxed{\\frac{2}{4}}$", r"\boxed{\frac{1}{3}}"
    texts, ids = [right, thought, wrong], {right: [1, 1, 1], thought: [1, 2], wrong: [3]}

    def rewards(function):
        return worker.rewards(row, texts, function=function, ids=ids)
    assert rewards(0) == [1, 1, 0]
    assert rewards(1) == [0, 1, 0]
    assert rewards(2) == [0, 1, 0]
    assert rewards(3) == [-1, -0.5, 0]  # 3 tokens: 2 of 2 over the soft limit 1; 2 tokens: 1 of 2
    assert rewards(4) == [-0.5, 0, 0]  # (1, 1) twice
    # The rewards that TRL gives itself.
    import trl.rewards
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert rewards(5) == trl.rewards.get_cosine_scaled_reward(max_len=4)(
        completions=completions, solution=[row["solution"]] * 3, completion_ids=[ids[text] for text in texts])


def test_the_functions_of_trls_documentation_run_unchanged(start):
    """As they stand in TRL's page "GRPO Trainer", section "Using a custom reward function"."""
    worker = start('''
import re

def reward_func_length(completion_ids, **kwargs):
    """Reward function that assigns higher scores to longer completions (in terms of token count)."""
    return [float(len(ids)) for ids in completion_ids]

def format_reward_func(completions, **kwargs):
    """Reward function that checks if the completion has a specific format."""
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    completion_contents = [completion[0]["content"] for completion in completions]
    matches = [re.match(pattern, content) for content in completion_contents]
    return [1.0 if match else 0.0 for match in matches]

def reward_func(completions, ground_truth, **kwargs):
    # Regular expression to capture content inside \\\\boxed{}
    matches = [re.search(r"\\\\boxed\\{(.*?)\\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    # Reward 1 if the content is the same as the ground truth, 0 otherwise
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth)]

def math_reward_func(prompts, completions, task, **kwargs):
    rewards = []
    for prompt, completion, t in zip(prompts, completions, task):
        rewards.append(1.0 if t == "math" and "7" in completion else None if t != "math" else -1.0)
    return rewards
''', [f"my_reward.py:{name}" for name in ("reward_func_length", "format_reward_func", "reward_func", "math_reward_func")])
    plain = {"prompt": "x", "ground_truth": "7", "task": "math"}
    assert worker.rewards(plain, ["a"], function=0) == [2]
    assert worker.rewards({"prompt": [{"role": "user", "content": "x"}]}, ["<think>a</think><answer>b</answer>", "b"],
                          function=1) == [1, 0]
    assert worker.rewards(plain, [r"so \boxed{7}", r"so \boxed{8}"], function=2) == [1, 0]
    assert worker.rewards(plain, ["7", "8"], function=3) == [1, -1]
    assert worker.rewards({**plain, "task": "code"}, ["7"], function=3) == [None]


def test_the_example_rewards_texts_and_messages(start):
    file = os.path.join(os.environ["TANDEM_SOURCE"], "examples", "my_reward.py")
    worker = start("", [f"{file}:score", f"{file}:short"], kwargs={"short.most": "2"})
    for prompt in ("7 x 8?", [{"role": "user", "content": "7 x 8?"}]):
        row = {"prompt": prompt, "answer": "so 7 x 8 = 56 #### 56"}
        assert worker.rewards(row, ["It is 56.", "It is 57.", "no idea"], function=0) == [1, 0, 0]
    assert worker.rewards({"prompt": "x", "answer": "none"}, ["1"], function=0) == [None]
    assert worker.rewards({"prompt": "x"}, ["a", "b"], function=1, ids={"a": [1, 2], "b": [1, 2, 3]}) == [0.1, 0]
