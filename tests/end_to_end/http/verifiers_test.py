"""verifiers 0.1 evaluates environments with a rollout server, through its own client and its own commands. It is installed by
deploy/setup/install.sh --engines into an environment of its own."""
import json
import os
import re
import signal
import subprocess
import urllib.request

import numpy as np
import openai
import pytest
import transformers

import free_ports
import page_commands
import small_run
import tool_caller
from rollout_client import Server, grpc_completions, load_stubs
from waiting import wait_until

SMOLLM2 = small_run.SOURCE / "models" / "smollm2-135m-instruct"
PYTHON = small_run.SOURCE / ".deps/engines/verifiers/bin/python"
DRIVER = small_run.SOURCE / "tests/end_to_end/http/verifiers_driver.py"
SUMS = {"What is 2 + 2?": "4", "What is 3 + 4?": "7", "What is 1 + 5?": "6"}  # of examples/verifiers_sums.py
WITH_IDS = {"logprobs": True, "extra_body": {"return_token_ids": True}}


@pytest.fixture(scope="module")
def stubs():
    return load_stubs()


@pytest.fixture(scope="module")
def server():
    with Server(SMOLLM2, "--numerics", "invariant", "--served-model-name", "smollm2", http=True) as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def start(url, environment, sampling, **request):
    """The driver, evaluating."""
    body = {"url": f"{url}/v1", "environment": environment, "sampling": sampling, **request}
    path = f"{small_run.SOURCE / 'examples'}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen([str(PYTHON), str(DRIVER), json.dumps(body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})


def rollouts_of(process):
    output, log = process.communicate(timeout=300)
    assert process.returncode == 0, log[-4000:]
    return json.loads(output)


def evaluate(url, environment, sampling, **request):
    """The rollouts that verifiers has at the end, in its order."""
    return rollouts_of(start(url, environment, sampling, **request))


def reward_of(text, answer):
    """By hand, as the rubric of examples/verifiers_sums.py has it."""
    return float(answer in text) + 0.25 * float(len(text) < 40)


def texts_of_openai(client, sampling):
    """What OpenAI's own client gets for the same questions: question -> text."""
    return {question: client.chat.completions.create(model="smollm2", messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": question}], **sampling).choices[0].message.content
        for question in SUMS}


def test_the_command_of_the_page_scores_what_openais_client_gets(server, client, tmp_path):
    output = page_commands.run_block(tmp_path, "docs/openai.md", "vf-eval", server.url)
    rows = [json.loads(line) for line in next(tmp_path.rglob("results.jsonl")).read_text(encoding="utf-8").splitlines()]
    texts = texts_of_openai(client, {"max_tokens": 16, "temperature": 0})
    assert sorted(row["prompt"][1]["content"] for row in rows) == sorted([*SUMS, *SUMS])
    for row in rows:
        question, text = row["prompt"][1]["content"], row["completion"][0]["content"]
        assert text == texts[question] and row["answer"] == SUMS[question] and row["error"] is None
        assert row["reward"] == reward_of(text, SUMS[question])
        assert (row["right"], row["short"]) == (float(SUMS[question] in text), float(len(text) < 40))
        assert row["is_truncated"] == (row["token_usage"]["output_tokens"] == 16)
    mean = np.mean([row["reward"] for row in rows])
    assert mean > 0.25, "SmolLM2 adds small numbers"
    assert re.search(rf"^reward: avg - {mean:.3f}, ", output, re.M), output


def test_ids_and_log_probs_of_its_rollouts_are_those_of_our_own_protocol(server, client, stubs):
    sampling = {"temperature": 0.8, "top_p": 0.9, "seed": 11, "max_tokens": 12}
    rollouts = evaluate(server.url, "sums", {**sampling, **WITH_IDS})
    texts = texts_of_openai(client, sampling)
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    assert [one["prompt"][1]["content"] for one in rollouts] == list(SUMS)
    for one in rollouts:
        turn, = one["turns"]
        question, text = one["prompt"][1]["content"], one["completion"][0]["content"]
        assert turn["prompt_ids"] == tokenizer.apply_chat_template(one["prompt"], add_generation_prompt=True, return_dict=False)
        wanted, = grpc_completions(stubs, server, turn["prompt_ids"], temperature=0.8, top_p=0.9, seed=11, max_new_tokens=12)
        assert turn["completion_ids"] == list(wanted.token_ids)
        assert [np.float32(x) for x in turn["completion_logprobs"]] == list(np.array(wanted.behaviour_logprobs, np.float32))
        assert text == texts[question] == tokenizer.decode(turn["completion_ids"], skip_special_tokens=True)
        assert one["reward"] == reward_of(text, SUMS[question]) and one["error"] is None


def test_every_turn_of_an_environment_continues_the_turns_before(server, stubs):
    rollout, = evaluate(server.url, "again", {"temperature": 0.7, "seed": 5, "max_tokens": 20, **WITH_IDS})
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    messages = rollout["prompt"] + rollout["completion"]
    assert [one["role"] for one in messages] == ["user", "assistant"] * 3 and rollout["stop"] == "max_turns_reached"
    assert rollout["reward"] == 3 and len(rollout["turns"]) == 3
    for turn, ids in enumerate(rollout["turns"]):
        before = messages[:2 * turn + 1]
        assert ids["prompt_ids"] == tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=False)
        wanted, = grpc_completions(stubs, server, ids["prompt_ids"], temperature=0.7, seed=5, max_new_tokens=20)
        assert ids["completion_ids"] == list(wanted.token_ids)
        assert [np.float32(x) for x in ids["completion_logprobs"]] == list(np.array(wanted.behaviour_logprobs, np.float32))


def test_its_client_of_ids_continues_exactly_what_was_drawn(server, stubs):
    sampling = {"temperature": 1.0, "seed": 5, "max_tokens": 20, **WITH_IDS}
    rollout, = evaluate(server.url, "again", sampling, client={"client_type": "openai_chat_completions_token"})
    assert rollout["error"] is None and len(rollout["turns"]) == 3
    before = []
    for ids in rollout["turns"]:
        assert ids["prompt_ids"][:len(before)] == before
        before = ids["prompt_ids"] + ids["completion_ids"]
        wanted, = grpc_completions(stubs, server, ids["prompt_ids"], temperature=1.0, seed=5, max_new_tokens=20)
        assert ids["completion_ids"] == list(wanted.token_ids)


def test_an_environment_with_tools_plays_the_calls_that_the_model_writes(tmp_path_factory):
    model = tool_caller.make(SMOLLM2, tmp_path_factory.mktemp("caller"))
    with Server(model, "--numerics", "invariant", "--served-model-name", "smollm2", http=True) as server:
        rollout, = evaluate(server.url, "calls", {"temperature": 0, "max_tokens": 40})
    assert rollout["error"] is None and rollout["stop"] == "no_tools_called" and rollout["reward"] == 1
    call, result, answer = rollout["completion"]
    assert (result["role"], result["content"], answer["content"]) == ("tool", "4", "It is 4.")
    assert rollout["metrics"]["total_tool_calls"] == 1


def test_an_environment_with_tools_ends_at_a_turn_without_a_call(server):
    rollout, = evaluate(server.url, "tools", {"temperature": 0, "max_tokens": 16})
    assert rollout["tools"] == ["add"] and rollout["error"] is None and rollout["stop"] == "no_tools_called"
    assert len(rollout["turns"]) == 1 and rollout["metrics"]["total_tool_calls"] == 0


@pytest.mark.parametrize("sampling, model, chain", [
    ({"presence_penalty": 1.0}, "smollm2", "BadRequestError.*400.*presence_penalty is 1.0: it is not supported here"),
    ({"n": 100_000}, "smollm2", "BadRequestError.*400.*n is 100000, want an integer from 1"),
    ({}, "gpt-4o", "NotFoundError.*404.*The model `gpt-4o` does not exist; this server has smollm2"),
])
def test_what_the_server_refuses_is_the_error_of_the_rollout(server, sampling, model, chain):
    rollouts = evaluate(server.url, "sums", {"max_tokens": 4, **sampling}, model=model)
    assert len(rollouts) == 3
    for one in rollouts:
        assert re.search(chain, one["error"]) and one["stop"] == "has_error" and one["completion"] == [] and one["reward"] == 0


def test_a_prompt_that_leaves_no_place_ends_the_rollout_as_too_long(server):
    for one in evaluate(server.url, "sums", {"max_tokens": 8192}):
        assert (one["stop"], one["error"], one["completion"]) == ("prompt_too_long", None, [])


def test_rollouts_that_find_the_queue_full_are_asked_for_again_by_the_client():
    settings = ["--set", "server.max_queued_groups=1", "--set", "server.engine.max_batch_sequences=1"]
    with Server(SMOLLM2, "--served-model-name", "smollm2", *settings, http=True) as server:
        rollouts = evaluate(server.url, "sums", {"temperature": 0, "max_tokens": 16}, rollouts=4, client={"max_retries": 200})
        refusals = re.search(r'^tandem_rejections_total\{reason="RESOURCE_EXHAUSTED"\} (\d+)', metrics(server), re.M)
    assert refusals and int(refusals[1]) > 0
    assert len(rollouts) == 12 and all(one["error"] is None and one["completion"] for one in rollouts)


def test_a_server_that_is_not_there_is_told_from_one_that_dies_on_the_way():
    absent = evaluate(f"http://127.0.0.1:{free_ports.free_port()}", "sums", {"max_tokens": 4}, client={"max_retries": 0})
    assert all("APIConnectionError" in one["error"] and "connection attempts failed" in one["error"] for one in absent)
    with Server(SMOLLM2, "--served-model-name", "smollm2", http=True) as server:
        evaluation = start(server.url, "sums", {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}, client={"max_retries": 0})
        wait_until(lambda: "tandem_groups_running 3" in metrics(server), "the rollouts never ran")
        server.process.send_signal(signal.SIGKILL)
        died = rollouts_of(evaluation)
    assert len(died) == 3
    assert all("APIConnectionError" in one["error"] and "connection attempts failed" not in one["error"] for one in died), died


def metrics(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
        return answer.read().decode()
