"""The client with which prime-rl and verifiers train, against /inference/v1/generate: `generate` of the package renderers, and vf-eval of
verifiers 0.4 on top of it. Both are installed by deploy/setup/install.sh --engines into an environment of their own."""
import json
import os
import subprocess

import numpy as np
import pytest
import transformers

import page_commands
import small_run
import tool_caller
from rollout_client import Server, grpc_completions, load_stubs

SMOLLM2 = small_run.SOURCE / "models" / "smollm2-135m-instruct"
ENVIRONMENT = small_run.SOURCE / ".deps/engines/renderers/bin"
HERE = small_run.SOURCE / "tests/end_to_end/http"
SUMS = {"What is 2 + 2?": "4", "What is 3 + 4?": "7", "What is 1 + 5?": "6"}  # of examples/verifiers_v1_sums.py


@pytest.fixture(scope="module")
def stubs():
    return load_stubs()


@pytest.fixture(scope="module")
def server():
    with Server(SMOLLM2, "--numerics", "invariant", "--served-model-name", "smollm2", http=True) as one:
        yield one


def user(text):
    return [{"role": "user", "content": text}]


def generate(server, *calls):
    request = {"url": f"{server.url}/v1", "tokenizer": str(SMOLLM2), "calls": calls}
    done = subprocess.run([str(ENVIRONMENT / "python"), str(HERE / "renderers_driver.py"), json.dumps(request)], capture_output=True,
                          text=True, timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def vf_eval(folder, taskset, *arguments):
    """The traces of an evaluation."""
    path = f"{HERE}:{small_run.SOURCE / 'examples'}"
    done = subprocess.run([str(ENVIRONMENT / "vf-eval"), taskset, "-m", "smollm2", "--env.agent.runtime.type", "subprocess", "--no-push",
                           "--no-rich", *arguments], cwd=folder, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HOME": str(folder)})
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return traces_of(folder)


def traces_of(folder):
    lines = next((folder / "outputs").rglob("traces.jsonl")).read_text(encoding="utf-8").splitlines()
    return [trace for line in lines for trace in json.loads(line)["traces"]]


def reward_of(text, answer):
    """By hand, as examples/verifiers_v1_sums.py has it."""
    return float(answer in text) + 0.25 * float(len(text) < 40)


def check_sampled_turns(trace, stubs, server, **sampling):
    """Every message that the model wrote is what our own protocol draws after the ids before it. verifiers writes four decimals."""
    before, turns = [], 0
    for node in trace["nodes"]:
        given = node["mask"].count(False)
        assert node["mask"] == [False] * given + [True] * (len(node["token_ids"]) - given)
        if node["sampled"]:
            turns += 1
            wanted, = grpc_completions(stubs, server, before + node["token_ids"][:given], **sampling)
            assert node["token_ids"][given:] == list(wanted.token_ids)
            assert node["logprobs"] == pytest.approx(list(wanted.behaviour_logprobs), abs=6e-5)
        before += node["token_ids"]
    return turns


def test_generate_returns_the_ids_and_log_probs_of_our_own_protocol(server, stubs):
    sampling = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "seed": 7, "max_tokens": 12}
    messages = [{"role": "system", "content": "Be brief."}, *user("Name a fruit.")]
    first, again, salted = generate(
        server, {"messages": messages, "sampling_params": sampling}, {"messages": messages, "sampling_params": sampling},
        # What verifiers adds for a later turn of a rollout, and prime-rl to keep runs apart.
        {"messages": messages, "sampling_params": {**sampling, "routed_experts_prompt_start": 3}, "cache_salt": "another", "priority": 1,
         "extra_headers": {"X-Session-ID": "rollout"}})
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    wanted, = grpc_completions(stubs, server, prompt, temperature=0.8, top_p=0.9, top_k=50, min_p=0.01, seed=7, max_new_tokens=12)
    for answer in (first, again, salted):
        assert answer["prompt_ids"] == prompt and answer["completion_ids"] == list(wanted.token_ids)
        assert [np.float32(x) for x in answer["completion_logprobs"]] == list(np.array(wanted.behaviour_logprobs, np.float32))
        assert answer["content"] == tokenizer.decode(wanted.token_ids, skip_special_tokens=True).strip()
        assert answer["finish_reason"] == ("length" if len(wanted.token_ids) == 12 else "stop")
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (len(prompt), len(wanted.token_ids))


def test_a_prompt_that_is_too_long_is_known_before_it_is_sent_and_a_refusal_has_the_servers_words(server):
    too_long, no_place, refused = generate(
        server, {"messages": user("What is it? " * 4000), "sampling_params": {"max_tokens": 4}},
        {"messages": user("Hi"), "sampling_params": {"max_tokens": 8192}},
        {"messages": user("Hi"), "sampling_params": {"presence_penalty": 1.5}})
    assert too_long["type"] == "OverlongPromptError" and "exceeds maximum context length (8192)" in too_long["message"]
    assert no_place["type"] == "BadRequestError" and "maximum context length is 8192" in no_place["message"]
    assert refused["type"] == "BadRequestError" and "sampling_params.presence_penalty is 1.5: it is not supported" in refused["message"]


def test_the_command_of_the_page_records_what_training_needs(server, stubs, tmp_path):
    page_commands.run_block(tmp_path, "docs/vllm_api.md", "vf-eval", server.url)
    traces = traces_of(tmp_path)
    assert sorted(trace["nodes"][0]["message"]["content"] for trace in traces) == sorted([*SUMS, *SUMS])
    for trace in traces:
        question, text = (node["message"]["content"] for node in trace["nodes"])
        assert check_sampled_turns(trace, stubs, server, temperature=0, max_new_tokens=16) == 1
        earned = {name: part["score"] * part["weight"] for name, part in trace["rewards"].items()}
        assert sum(earned.values()) == reward_of(text, SUMS[question]) and set(earned) == {"right", "short"}
        assert trace["ok"] and trace["errors"] == [] and trace["stop_condition"] == "agent_completed"
    assert any(trace["rewards"]["right"]["score"] for trace in traces), "SmolLM2 adds small numbers"


def test_its_client_for_evaluations_gets_the_same_texts_without_ids(server, tmp_path):
    (tmp_path / "train").mkdir()
    where = ["--client.base-url", f"{server.url}/v1", "--sampling.max-tokens", "16", "--sampling.temperature", "0"]
    plain = vf_eval(tmp_path, "verifiers_v1_sums", "--client.type", "eval", *where)
    trained = vf_eval(tmp_path / "train", "verifiers_v1_sums", "--client.type", "train", "--client.renderer-model-name", str(SMOLLM2), *where)
    texts = [sorted((trace["nodes"][0]["message"]["content"], trace["nodes"][1]["message"]["content"]) for trace in traces)
             for traces in (plain, trained)]
    assert texts[0] == texts[1] and [question for question, _ in texts[0]] == sorted(SUMS)
    assert all(node["token_ids"] == [] for trace in plain for node in trace["nodes"])


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    return tool_caller.make(SMOLLM2, tmp_path_factory.mktemp("caller"))


def test_an_agent_plays_the_calls_of_tools_that_the_client_reads_from_the_ids(caller, stubs, tmp_path):
    with Server(caller, "--numerics", "invariant", "--served-model-name", "smollm2", http=True) as server:
        trace, = vf_eval(tmp_path, "verifiers_v1_calls", "--client.type", "train", "--client.base-url", f"{server.url}/v1",
                         "--client.renderer-model-name", str(caller), "--client.renderer.name", "default", "--client.renderer.tool-parser",
                         "qwen3", "--sampling.max-tokens", "40", "--sampling.temperature", "0")
        assert check_sampled_turns(trace, stubs, server, temperature=0, max_new_tokens=40) == 2
    call, result, answer = (node["message"] for node in trace["nodes"][-3:])
    assert [(one["name"], json.loads(one["arguments"])) for one in call["tool_calls"]] == [("add", {"a": 2, "b": 2})]
    assert (result["role"], result["content"]) == ("tool", "4") and answer["content"] == "It is 4."
    assert [one["finish_reason"] for one in trace["calls"]] == ["tool_calls", "stop"]
    assert trace["rewards"]["right"]["score"] == 1


def test_what_the_server_refuses_is_an_error_of_the_trace(server, tmp_path):
    for folder, client, words in (("eval", ["--client.type", "eval"], "upstream 400"),
                                  ("train", ["--client.type", "train", "--client.renderer-model-name", str(SMOLLM2)], "")):
        (tmp_path / folder).mkdir()
        traces = vf_eval(tmp_path / folder, "verifiers_v1_sums", *client, "--client.base-url", f"{server.url}/v1", "--sampling.top-p", "0")
        assert len(traces) == 3
        for trace in traces:
            error, = trace["errors"]
            assert error["type"] == "ProviderError" and error["status_code"] == 400 and words in error["message"]
            assert "top_p is 0, want more than 0 and at most 1" in error["message"] and not trace["ok"]
