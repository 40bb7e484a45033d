"""lm-eval on small tasks: the scores through the HTTP endpoints are those through transformers."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

import small_run
from rollout_client import Server

SMOLLM2 = small_run.SOURCE / "models" / "smollm2-135m-instruct"
CAPITALS = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima", "Spain": "Madrid",
            "Norway": "Oslo", "Cuba": "Havana", "Kenya": "Nairobi", "Greece": "Athens", "Poland": "Warsaw", "Iran": "Tehran"}

CHOICE = """
task: capitals_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: What is the capital of {{country}}?\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
TEXT = """
task: capitals_text
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "What is the capital of {{country}}? Answer with the name alone."
doc_to_target: "{{name}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 12, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: true}]
"""
ROLLING = """
task: capitals_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "The capital of {{country}} is {{name}}."
metric_list: [{metric: word_perplexity}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    names = list(CAPITALS.values())
    rows = []
    for i, (country, name) in enumerate(CAPITALS.items()):
        choices = [name if k == i % 4 else names[(i + 3 * k + 1) % len(names)] for k in range(4)]
        rows.append({"country": country, "name": name, "choices": [f" {c}" for c in choices], "answer": i % 4})
    data = folder / "capitals.json"
    data.write_text("\n".join(map(json.dumps, rows)))
    for task, text in (("choice", CHOICE), ("text", TEXT), ("rolling", ROLLING)):
        (folder / f"{task}.yaml").write_text(text.replace("DATA", str(data)))
    return folder


@pytest.fixture(scope="module")
def server():
    with Server(SMOLLM2, "--dtype", "fp32", "--served-model-name", "smollm2", http=True) as one:
        yield one


DRIVER = pathlib.Path(__file__).with_name("lm_eval_driver.py")
HF = ["--model", "hf", "--model_args", f"pretrained={SMOLLM2},dtype=float32", "--device", "cpu"]


def through_http(server, model, path):
    settings = f"model=smollm2,base_url={server.url}{path},num_concurrent=4,max_retries=1,tokenizer={SMOLLM2}"
    return ["--model", model, "--model_args", settings]


@pytest.fixture(scope="module")
def evaluations(tasks, server, tmp_path_factory):
    """The results and the samples of each task, by the way that it was evaluated: through the endpoints and through
    transformers, plain and as chats. `lm_eval` runs once for each way, with all tasks of that way."""
    folder = tmp_path_factory.mktemp("evaluations")
    plain = ["--tasks", "capitals_choice,capitals_text,capitals_rolling"]
    chat = ["--tasks", "capitals_text", "--apply_chat_template"]
    ways = {"http": [*through_http(server, "local-completions", "/v1/completions"), *plain],
            "hf": [*HF, *plain],
            "http chat": [*through_http(server, "local-chat-completions", "/v1/chat/completions"), *chat],
            "hf chat": [*HF, *chat]}
    commands = folder / "commands.json"
    commands.write_text(json.dumps([
        ["run", *words, "--include_path", str(tasks), "--output_path", str(folder / way), "--log_samples"]
        for way, words in ways.items()]))
    done = subprocess.run([sys.executable, DRIVER, commands], capture_output=True, text=True, timeout=540,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "OPENAI_API_KEY": "none"})
    assert done.returncode == 0, done.stderr[-3000:]
    return {way: evaluated(folder / way) for way in ways}


def evaluated(out):
    """task -> (its results, its samples), of the files that `lm_eval` wrote"""
    path, = out.rglob("results_*.json")
    found = {}
    for task, results in json.loads(path.read_text())["results"].items():
        path, = out.rglob(f"samples_{task}_*.jsonl")
        found[task] = results, sorted(map(json.loads, path.read_text().splitlines()), key=lambda one: one["doc_id"])
    return found


def numbers(samples):
    """Log-probs and whether each was the greedy choice, of every request."""
    return [(float(value), greedy) for one in samples for ((value, greedy),) in one["resps"]]


def test_multiple_choice_by_prompt_log_probs_scores_as_transformers_does(evaluations):
    own, own_samples = evaluations["http"]["capitals_choice"]
    other, other_samples = evaluations["hf"]["capitals_choice"]
    assert own["acc,none"] == other["acc,none"] > 0.5
    for (a, greedy_a), (b, greedy_b) in zip(numbers(own_samples), numbers(other_samples), strict=True):
        assert a == pytest.approx(b, abs=2e-3) and greedy_a == greedy_b


def test_perplexity_is_that_of_transformers(evaluations):
    own, _ = evaluations["http"]["capitals_rolling"]
    other, _ = evaluations["hf"]["capitals_rolling"]
    assert own["word_perplexity,none"] == pytest.approx(other["word_perplexity,none"], rel=1e-3)


@pytest.mark.parametrize("chat", ["", " chat"], ids=["text", "chat"])
def test_greedy_texts_are_those_of_transformers(evaluations, chat):
    own, own_samples = evaluations["http" + chat]["capitals_text"]
    other, other_samples = evaluations["hf" + chat]["capitals_text"]
    assert [one["resps"] for one in own_samples] == [one["resps"] for one in other_samples]
    assert own["exact_match,none"] == other["exact_match,none"]
