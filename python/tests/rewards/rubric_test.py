"""A Rubric of the package verifiers as a reward, unchanged. The package and what it needs are installed by
deploy/setup/install.sh --engines into an environment of their own, because its versions are not those of .deps/venv."""
import json
import os
import subprocess

SOURCE = os.environ["TANDEM_SOURCE"]
PYTHON = os.path.join(SOURCE, ".deps", "engines", "verifiers", "bin", "python")

# As in the README of verifiers 0.1: functions of a rubric take any of prompt, completion, answer, state, parser.
ENVIRONMENT = '''
import verifiers as vf

parser = vf.XMLParser(["think", "answer"], answer_field="answer")

def correct_answer(parser, completion, answer) -> float:
    return 1.0 if parser.parse_answer(completion) == answer else 0.0

async def short(completion, state) -> float:
    return 1.0 if len(completion[-1]["content"]) < 40 else 0.0

def fails(completion) -> float:
    return 1.0 / (0 if "crash" in completion[-1]["content"] else 1)

rubric = vf.Rubric(funcs=[correct_answer, short], weights=[1.0, 0.25], parser=parser)
rubric_that_fails = vf.Rubric(funcs=[correct_answer, fails], parser=parser)
'''


def tandem_reward(folder, function):
    (folder / "my_env.py").write_text(ENVIRONMENT, encoding="utf-8")
    (folder / "data.jsonl").write_text(json.dumps(
        {"prompt": [{"role": "user", "content": "3 + 4?"}], "answer": "7"}) + "\n", encoding="utf-8")
    long = "<think>" + "word " * 20 + "</think><answer>7</answer>"
    (folder / "said.jsonl").write_text(json.dumps(
        {"completions": ["<answer>7</answer>", long, "<answer>8</answer>", "crash"]}) + "\n", encoding="utf-8")
    done = subprocess.run([os.path.join(os.environ["TANDEM_BIN"], "tandem"), "reward", f"my_env.py:{function}", "--data",
                           "data.jsonl", "--completions-file", "said.jsonl", "--json", "--python", PYTHON], cwd=folder,
                          capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout)["rows"][0]["completions"] if done.stdout else done.stderr


def test_the_reward_is_the_weighted_sum_and_its_functions_are_parts(tmp_path):
    code, completions = tandem_reward(tmp_path, "rubric")
    assert code == 0, completions
    assert [completion["reward"] for completion in completions] == [1.25, 1, 0.25, 0.25]
    assert completions[0]["parts"] == {"rubric": 1.25, "rubric/correct_answer": 1, "rubric/short": 1}


def test_a_function_of_it_that_raises_is_no_reward_of_0(tmp_path):
    code, completions = tandem_reward(tmp_path, "rubric_that_fails")
    assert code == 3, completions
    assert [completion["reward"] for completion in completions] == [2, 2, 1, None]
    assert "Error calling reward function fails: float division by zero" in completions[3]["failed"]
