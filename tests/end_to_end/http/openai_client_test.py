"""The HTTP endpoints of a rollout server as OpenAI's own client uses them, beside gRPC, transformers and raw sockets."""
import json
import math
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest
import torch
import transformers

import small_run
from rollout_client import Server, grpc_completions, load_stubs, load_vllm_stubs

SMOLLM2 = small_run.SOURCE / "models" / "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stubs():
    return load_stubs()


@pytest.fixture(scope="module")
def server(model):
    with Server(model, "--dtype", "fp32", "--numerics", "invariant", "--served-model-name", "small", http=True) as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def reference(model):
    """transformers' model and tokenizer, fp32."""
    return (transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(),
            transformers.AutoTokenizer.from_pretrained(model))


@pytest.fixture(scope="module")
def smollm2():
    with Server(SMOLLM2, "--served-model-name", "smollm2", http=True) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield client


def get(url, path):
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return answer.status, answer.read().decode()


def post(url, path, body, **headers):
    """Status and JSON of an answer, an error's too."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_model_is_listed_with_the_length_of_its_context(client):
    models = client.models.list().data
    assert [(one.id, one.owned_by) for one in models] == [("small", "tandem")]
    assert models[0].max_model_len == 512


def test_health_version_and_metrics_are_served(server):
    assert get(server.url, "/health")[0] == 200
    assert set(json.loads(get(server.url, "/version")[1])) == {"version"}
    assert "tandem_kv_capacity_tokens" in get(server.url, "/metrics")[1]


def test_ids_and_log_probs_over_http_are_those_over_grpc_bit_for_bit(client, server, stubs):
    prompt = [5, 9, 30, 31, 40]
    answer = client.completions.create(model="small", prompt=prompt, max_tokens=12, temperature=0.7, top_p=0.9, seed=17, n=3,
                                       logprobs=0, extra_body={"return_token_ids": True, "ignore_eos": True})
    wanted = grpc_completions(stubs, server, prompt, n=3, temperature=0.7, top_p=0.9, seed=17, max_new_tokens=12, ignore_eos=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice, one in zip(answer.choices, wanted):
        assert choice.token_ids == list(one.token_ids)
        assert [np.float32(x) for x in choice.logprobs.token_logprobs] == list(np.array(one.behaviour_logprobs, np.float32))
        assert choice.prompt_token_ids == prompt
        assert choice.weight_versions == [{"weight_version": 0, "num_tokens": 12}]
        assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 36 and answer.usage.prompt_tokens == 5


def test_raw_log_probs_are_those_of_the_untouched_logits(client, server, stubs):
    sampling = dict(temperature=0.5, seed=3)
    answer = client.completions.create(model="small", prompt=[5, 9], max_tokens=6, logprobs=0, **sampling,
                                       extra_body={"logprobs_mode": "raw_logprobs", "ignore_eos": True})
    one = grpc_completions(stubs, server, [5, 9], max_new_tokens=6, ignore_eos=True, **sampling)[0]
    assert [np.float32(x) for x in answer.choices[0].logprobs.token_logprobs] == list(np.array(one.raw_logprobs, np.float32))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stop", [None, ["e", "th"], ["\n"]], ids=["none", "letters", "newline"])
def test_the_pieces_of_a_stream_add_up_to_the_whole_answer(client, n, stop):
    how = dict(model="small", prompt="Name a number:", max_tokens=40, seed=n, n=n, stop=stop, logprobs=1,
               extra_body={"return_token_ids": True})
    whole = client.completions.create(**how)
    texts, ids, logprobs, reasons, usage = [""] * n, [[] for _ in range(n)], [[] for _ in range(n)], [None] * n, None
    for piece in client.completions.create(**how, stream=True, stream_options={"include_usage": True}):
        usage = piece.usage or usage
        for choice in piece.choices:
            texts[choice.index] += choice.text
            ids[choice.index] += choice.token_ids
            logprobs[choice.index] += choice.logprobs.token_logprobs
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert ids[choice.index] == choice.token_ids
        assert logprobs[choice.index] == choice.logprobs.token_logprobs
        assert reasons[choice.index] == choice.finish_reason
        assert not stop or not any(one in choice.text for one in stop)
    assert usage.completion_tokens == whole.usage.completion_tokens == sum(map(len, ids))


def test_a_stream_interval_sends_the_first_token_at_once_and_the_others_together(model):
    inference, inference_grpc = load_vllm_stubs()[:2]
    how = dict(model="small", prompt="Name a number:", max_tokens=10, seed=3, extra_body={"return_token_ids": True, "ignore_eos": True})
    with Server(model, "--served-model-name", "small", "--stream-interval", "4", http=True) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.completions.create(**how).choices[0]
            pieces = [piece.choices[0] for piece in client.completions.create(**how, stream=True) if piece.choices]
        request = inference.GenerateRequest(text="Name a number:", temperature=1.0, sampling=inference.RandomSampling(seed=3),
                                            stopping=inference.StoppingCriteria(max_new_tokens=10, ignore_eos=True))
        responses = list(inference_grpc.InferenceStub(server.channel).GenerateStream(request, timeout=60))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [i for piece in pieces for i in piece.token_ids] == whole.token_ids
    assert pieces[-1].finish_reason == "length"
    # 1, 4, 4 and 1 tokens, of which a slow reader gets several at once.
    for sizes in ([len(piece.token_ids) for piece in pieces], [one.outputs.num_tokens for one in responses]):
        assert set(np.cumsum(sizes)) <= {1, 5, 9, 10} and sum(sizes) == 10, sizes


def test_characters_of_several_tokens_come_whole_in_a_stream(smollm2):
    how = dict(model="smollm2", prompt="日本語の文章と emoji 😀🎉: 日本語", max_tokens=40, seed=5, temperature=1.0)
    whole = smollm2.completions.create(**how).choices[0].text
    pieces = [piece.choices[0].text for piece in smollm2.completions.create(**how, stream=True) if piece.choices]
    assert "".join(pieces) == whole
    assert any(ord(character) > 127 for character in whole), "the prompt makes the model write such characters"


def test_echo_gives_the_log_probs_that_transformers_computes(client, reference):
    network, tokenizer = reference
    text = "Name a number like 7"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    answer = client.completions.create(model="small", prompt=text, max_tokens=1, temperature=0, echo=True, logprobs=2)
    with torch.no_grad():
        wanted = torch.log_softmax(network(torch.tensor([ids])).logits[0].double(), -1)
    shown = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith(text) and shown.token_logprobs[0] is None and shown.top_logprobs[0] is None
    assert len(shown.tokens) == len(ids) + 1
    for t in range(1, len(ids)):
        assert shown.token_logprobs[t] == pytest.approx(float(wanted[t - 1, ids[t]]), abs=2e-4)
        best = max(shown.top_logprobs[t], key=shown.top_logprobs[t].get)
        assert best == tokenizer.decode([int(wanted[t - 1].argmax())])
    assert shown.text_offset == [len("".join(shown.tokens[:t])) for t in range(len(shown.tokens))]


def test_prompt_log_probs_without_drawing_have_ranks(client, server, reference):
    network, _ = reference
    ids = [5, 9, 30, 31]
    status, answer = post(server.url, "/v1/completions", {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 1, "echo": True})
    assert status == 200, answer
    listed = answer["choices"][0]["prompt_logprobs"]
    with torch.no_grad():
        logits = network(torch.tensor([ids])).logits[0]
    assert listed[0] is None and answer["usage"]["completion_tokens"] == 0
    for t in range(1, 4):
        rank = 1 + int((logits[t - 1] > logits[t - 1, ids[t]]).sum())
        assert listed[t][str(ids[t])]["rank"] == rank
        assert listed[t][str(int(logits[t - 1].argmax()))]["rank"] == 1


def test_several_prompts_in_one_request_are_those_asked_for_alone(client):
    prompts = ["One", "Two words", "Three"]
    how = dict(model="small", max_tokens=8, seed=2, n=2)
    together = client.completions.create(prompt=prompts, **how)
    assert [choice.index for choice in together.choices] == list(range(6))
    for p, prompt in enumerate(prompts):
        alone = client.completions.create(prompt=prompt, **how)
        assert [c.text for c in together.choices[2 * p:2 * p + 2]] == [c.text for c in alone.choices]


def test_a_chat_is_rendered_as_transformers_does_with_tools_and_variables(smollm2):
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]
    answer = smollm2.chat.completions.create(model="smollm2", messages=messages, max_tokens=12, temperature=0, logprobs=True,
                                             top_logprobs=2, extra_body={"return_token_ids": True})
    wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert answer.prompt_token_ids == wanted
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and "4" in choice.message.content
    assert [entry.token for entry in choice.logprobs.content] == [tokenizer.decode([i]) for i in choice.token_ids]
    for entry in choice.logprobs.content:
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob, "greedy: the likeliest was drawn"
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "2?"}]}]
    assert smollm2.chat.completions.create(model="smollm2", messages=parts, max_tokens=1).choices


def test_a_streamed_chat_begins_with_its_role_and_adds_up(smollm2):
    how = dict(model="smollm2", messages=[{"role": "user", "content": "Say hello."}], max_tokens=24, seed=4)
    whole = smollm2.chat.completions.create(**how).choices[0]
    pieces = [piece.choices[0] for piece in smollm2.chat.completions.create(**how, stream=True) if piece.choices]
    assert pieces[0].delta.role == "assistant" and all(piece.delta.role is None for piece in pieces[1:])
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.message.content
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == whole.finish_reason


def test_a_stop_token_ends_a_completion_without_showing(client, server):
    plain = client.completions.create(model="small", prompt=[5, 9], max_tokens=20, seed=8,
                                      extra_body={"return_token_ids": True, "ignore_eos": True}).choices[0]
    third = plain.token_ids[2]
    assert third not in plain.token_ids[:2]
    stopped = client.completions.create(model="small", prompt=[5, 9], max_tokens=20, seed=8,
                                        extra_body={"return_token_ids": True, "ignore_eos": True, "stop_token_ids": [third]}).choices[0]
    assert stopped.token_ids == plain.token_ids[:3]
    assert stopped.finish_reason == "stop" and stopped.stop_reason == third
    assert stopped.text == post(server.url, "/detokenize", {"tokens": plain.token_ids[:2]})[1]["prompt"]


def test_texts_and_ids_are_those_of_the_tokenizer(server, reference):
    tokenizer = reference[1]
    status, answer = post(server.url, "/tokenize", {"prompt": "Two words, é😀", "return_token_strs": True})
    assert status == 200 and answer["tokens"] == tokenizer("Two words, é😀").input_ids
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 512
    assert post(server.url, "/detokenize", {"tokens": answer["tokens"]})[1] == {"prompt": "Two words, é😀"}


@pytest.mark.parametrize("body, status, param, words", [
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature", "want a number"),
    ({"prompt": "a", "temperature": -1}, 400, "temperature", "0 (greedy)"),
    ({"prompt": "a", "top_p": 0}, 400, "top_p", "more than 0"),
    ({"prompt": "a", "n": 0}, 400, "n", "an integer from 1"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "an integer from 1"),
    ({"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens", "1.5"),
    ({"prompt": "a", "stop": [""]}, 400, "stop", "1 to 1024 bytes"),
    ({"prompt": "a", "stop": 7}, 400, "stop", "want a text"),
    ({"prompt": [1, 10 ** 12]}, 400, "prompt[1]", "token id"),
    ({"prompt": [[1, 2], [-1]]}, 400, "prompt[1][0]", "token id"),
    ({"prompt": []}, 400, "prompt", "no tokens"),
    ({"prompt": ""}, 400, "prompt", "no tokens"),
    ({}, 400, "prompt", "missing"),
    ({"prompt": {"a": 1}}, 400, "prompt", "array"),
    ({"prompt": "a", "model": "gpt-4o"}, 404, "model", "does not exist"),
    ({"prompt": "a", "presence_penalty": 0.5}, 400, "presence_penalty", "not supported"),
    ({"prompt": "a", "logit_bias": {"5": 1}}, 400, "logit_bias", "not supported"),
    ({"prompt": "a", "best_of": 4}, 400, "best_of", "not supported"),
    ({"prompt": "a", "response_format": {"type": "json_object"}}, 400, "response_format", "no grammars"),
    ({"prompt": "a", "logprobs": 1000}, 400, "logprobs", "0 to 128"),
    ({"prompt": "a", "min_tokens": 20, "max_tokens": 3}, 400, "min_tokens", "more than max_tokens"),
    ({"prompt": "a", "stream_options": 3}, 400, "stream_options", "no object"),
    ({"prompt": "a" * 3000, "max_tokens": 4}, 400, None, "maximum context length is 512"),
])
def test_a_request_that_is_wrong_is_told_which_field_and_why(server, body, status, param, words):
    code, answer = post(server.url, "/v1/completions", body)
    assert code == status, answer
    assert set(answer) == {"error"} and set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["param"] == param
    assert words in answer["error"]["message"], answer


@pytest.mark.parametrize("body, words", [
    ({"messages": []}, "no array of messages"),
    ({"messages": "hi"}, "no array of messages"),
    ({"messages": [{"content": "hi"}]}, "text `role`"),
    ({"messages": [{"role": "user", "content": 3}]}, "neither a text nor"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "reads text only"),
    ({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required", "tools": [{}]}, "cannot be forced"),
    ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "without logprobs"),
    ({"messages": [{"role": "user", "content": "a"}], "functions": [{}]}, "not supported"),
])
def test_a_chat_that_is_wrong_is_told_why(server, body, words):
    code, answer = post(server.url, "/v1/chat/completions", body)
    assert code == 400 and words in answer["error"]["message"], answer


@pytest.mark.parametrize("path, body, status, words", [
    ("/v1/completions", b"{bad", 400, "not JSON at byte 2"),
    ("/v1/completions", b"", 400, "empty"),
    ("/v1/completions", b"[1]", 400, "no JSON object"),
    ("/v1/completions", b"\xff\xfe{}", 400, "not JSON"),
    ("/v1/completions", b'{"prompt": "\xff"}', 400, "not JSON"),
    ("/v1/completions", b"[" * 100_000, 400, "nests deeper"),
    ("/v1/nothing", b"{}", 404, "/v1/chat/completions"),
])
def test_what_is_no_request_is_refused_in_the_same_shape(server, path, body, status, words):
    code, answer = post(server.url, path, body)
    assert code == status and words in answer["error"]["message"], answer


def test_the_client_raises_its_own_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-4o", prompt="a")
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="small", prompt="a " * 600)
    assert error.value.code == "context_length_exceeded"


def test_a_method_or_a_content_type_that_is_not_taken_is_named(server):
    code, answer = post(server.url, "/v1/completions", {}, **{"Content-Type": "text/plain"})
    assert code == 415 and "application/json" in answer["error"]["message"]
    with pytest.raises(urllib.error.HTTPError) as error:
        get(server.url, "/v1/completions")
    assert error.value.code == 405 and error.value.headers["Allow"] == "POST"


def test_numbers_that_json_has_not_never_appear(client):
    answer = client.completions.create(model="small", prompt=[5], max_tokens=3, echo=True, logprobs=5, extra_body={"prompt_logprobs": 2})
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    assert all(math.isfinite(x) for x in answer.choices[0].logprobs.token_logprobs[1:])


def test_each_server_of_a_run_has_the_next_http_port(model, tmp_path):
    config = small_run.write_config(tmp_path, model)
    code, output = small_run.run(config, "--set", "launch.num_servers=2", "--set", "server.http_listen=127.0.0.1:8000", "--dry-run")
    assert code == 0, output
    starts = [line for line in output.splitlines() if line.startswith("# start: ") and "rollout_server" in line]
    assert len(starts) == 2 and "http_listen" not in starts[0] and "--set server.http_listen=127.0.0.1:8001" in starts[1]
