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


def evaluate(tasks, out, model, model_args, task, *more):
    """The results and the samples of `lm_eval`."""
    done = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", model_args, "--tasks", task, "--include_path",
                           str(tasks), "--output_path", str(out), "--log_samples", *more], capture_output=True, text=True, timeout=540,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hf"), "OPENAI_API_KEY": "none"})
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next(pathlib.Path(out).rglob("results_*.json")).read_text())["results"][task]
    samples = [json.loads(line) for line in next(pathlib.Path(out).rglob("samples_*.jsonl")).read_text().splitlines()]
    return results, sorted(samples, key=lambda one: one["doc_id"])


def through_transformers(tasks, out, task, *more):
    return evaluate(tasks, out, "hf", f"pretrained={SMOLLM2},dtype=float32", task, "--device", "cpu", *more)


def through_http(tasks, out, server, task, *more, model="local-completions", path="/v1/completions"):
    return evaluate(tasks, out, model, f"model=smollm2,base_url={server.url}{path},num_concurrent=4,max_retries=1,tokenizer={SMOLLM2}", task, *more)


def numbers(samples):
    """Log-probs and whether each was the greedy choice, of every request."""
    return [(float(value), greedy) for one in samples for ((value, greedy),) in one["resps"]]


def test_multiple_choice_by_prompt_log_probs_scores_as_transformers_does(tasks, server, tmp_path):
    own, own_samples = through_http(tasks, tmp_path / "http", server, "capitals_choice")
    other, other_samples = through_transformers(tasks, tmp_path / "hf", "capitals_choice")
    assert own["acc,none"] == other["acc,none"] > 0.5
    for (a, greedy_a), (b, greedy_b) in zip(numbers(own_samples), numbers(other_samples), strict=True):
        assert a == pytest.approx(b, abs=2e-3) and greedy_a == greedy_b


def test_perplexity_is_that_of_transformers(tasks, server, tmp_path):
    own, _ = through_http(tasks, tmp_path / "http", server, "capitals_rolling")
    other, _ = through_transformers(tasks, tmp_path / "hf", "capitals_rolling")
    assert own["word_perplexity,none"] == pytest.approx(other["word_perplexity,none"], rel=1e-3)


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_greedy_texts_are_those_of_transformers(tasks, server, tmp_path, chat):
    more = ["--apply_chat_template"] if chat else []
    kind = dict(model="local-chat-completions", path="/v1/chat/completions") if chat else {}
    own, own_samples = through_http(tasks, tmp_path / "http", server, "capitals_text", *more, **kind)
    other, other_samples = through_transformers(tasks, tmp_path / "hf", "capitals_text", *more)
    assert [one["resps"] for one in own_samples] == [one["resps"] for one in other_samples]
    assert own["exact_match,none"] == other["exact_match,none"]
