"""TRL's clients of a vLLM server against a rollout server. TRL's VLLMClient refuses to be made where vLLM is not installed, which it
needs for NCCL alone; the tests answer that question for it and change nothing else."""
import json
import urllib.request

import accelerate
import numpy as np
import pytest
import torch
import transformers
import trl.generation.vllm_client
from trl.experimental.async_grpo.vllm_client import VLLMClient as AsyncGrpoClient
from trl.generation.vllm_client import VLLMClient

import small_run
from rollout_client import Server, grpc_completions, load_stubs

SMOLLM2 = small_run.SOURCE / "models" / "smollm2-135m-instruct"
PROMPTS = [[5, 9, 30, 31], [7, 8]]


@pytest.fixture(scope="module")
def stubs():
    return load_stubs()


@pytest.fixture(scope="module")
def server(model):
    with Server(model, "--dtype", "fp32", "--numerics", "invariant", "--served-model-name", "small", http=True) as one:
        yield one


@pytest.fixture
def client(server, monkeypatch):
    return client_of(server, monkeypatch)


def is_paused(server):
    with urllib.request.urlopen(server.url + "/is_paused", timeout=60) as answer:
        return json.loads(answer.read())["is_paused"]


def client_of(server, monkeypatch):
    monkeypatch.setattr(trl.generation.vllm_client, "is_vllm_available", lambda *_: True)
    return VLLMClient(base_url=server.url)


def test_generate_gives_the_ids_and_log_probs_of_our_own_protocol(client, server, stubs):
    assert client.model == "small"
    answer = client.generate(PROMPTS, n=2, temperature=0.8, top_p=0.9, top_k=40, max_tokens=6,
                             generation_kwargs={"seed": 3, "ignore_eos": True})
    wanted = [one for prompt in PROMPTS for one in grpc_completions(
        stubs, server, prompt, n=2, temperature=0.8, top_p=0.9, top_k=40, seed=3, max_new_tokens=6, ignore_eos=True)]
    assert answer["prompt_ids"] == PROMPTS
    assert answer["completion_ids"] == [list(one.token_ids) for one in wanted]
    assert [[np.float32(value) for value, in row] for row in answer["logprobs"]] == [
        list(np.array(one.behaviour_logprobs, np.float32)) for one in wanted]
    assert answer["logprob_token_ids"] == [[[i] for i in one.token_ids] for one in wanted]


def test_the_likeliest_ids_of_each_position_come_in_order(client):
    answer = client.generate([[5, 9]], temperature=1.0, max_tokens=4, logprobs=3, generation_kwargs={"seed": 1, "ignore_eos": True})
    for drawn, ids, values in zip(answer["completion_ids"][0], answer["logprob_token_ids"][0], answer["logprobs"][0], strict=True):
        assert drawn in ids and len(ids) in (3, 4) and values == sorted(values, reverse=True)


def test_a_chat_is_rendered_by_the_server_with_the_models_template(monkeypatch):
    conversations = [[{"role": "user", "content": "What is 2 + 2?"}], [{"role": "system", "content": "Be brief."},
                                                                      {"role": "user", "content": "Name a fruit."}]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    with Server(SMOLLM2, "--served-model-name", "smollm2", http=True) as server:
        answer = client_of(server, monkeypatch).chat(conversations, temperature=0.0, max_tokens=12)
    assert answer["prompt_ids"] == [tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)
                                    for one in conversations]
    assert "4" in tokenizer.decode(answer["completion_ids"][0])
    assert [len(row) for row in answer["logprobs"]] == [len(ids) for ids in answer["completion_ids"]]


def test_given_sequences_are_scored_as_transformers_does(client, model):
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    sequences, lengths = [[5, 9, 30, 31, 40], [7, 8, 9]], [2, 1]
    answer = client.get_sequence_logprobs(sequences, lengths, top_logprobs=4, chunk_size=1)
    for ids, length, own, candidates in zip(sequences, lengths, answer["actual_logprobs"], answer["logprob_token_ids"], strict=True):
        with torch.no_grad():
            wanted = torch.log_softmax(network(torch.tensor([ids])).logits[0].double(), -1)
        assert [value for value, in own] == pytest.approx([float(wanted[t - 1, ids[t]]) for t in range(length, len(ids))], abs=2e-4)
        assert [row[0] for row in candidates] == [int(wanted[t - 1].argmax()) for t in range(length, len(ids))]


def test_weights_by_nccl_are_not_promised(client):
    with pytest.raises(RuntimeError, match="does not expose its development endpoints"):
        client.init_communicator(device="cpu")


def test_a_request_that_is_wrong_is_an_exception_with_the_servers_words(client):
    with pytest.raises(Exception, match="400.*repetition_penalty is 1.2: it is not supported"):
        client.generate([[5]], repetition_penalty=1.2)
    with pytest.raises(Exception, match="400.*prompt_logprobs is 200, want an integer from 0 to 128"):
        client.get_sequence_logprobs([[5, 9]], [1], top_logprobs=200)


def test_the_client_of_async_grpo_pauses_and_resumes(server):
    accelerate.PartialState()  # its log asks for the process's rank
    client = AsyncGrpoClient(server.url, server_timeout=60)
    client.wait_for_server_ready()
    assert client.get_max_model_len() == 512 and client.get_world_size() == 1
    client.pause()
    assert is_paused(server)
    client.resume()
    assert not is_paused(server)
