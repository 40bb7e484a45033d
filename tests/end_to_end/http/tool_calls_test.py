"""Calls of tools as OpenAI's own client gets them, whole and streamed, from a model that writes them; and a chat whose earlier turns
are given as ids, as prime-rl's clients do."""
import json

import openai
import pytest
import transformers

import small_run
import tool_caller
import tool_prompt
from rollout_client import Server, grpc_completions, load_stubs

SMOLLM2 = small_run.SOURCE / "models" / "smollm2-135m-instruct"
TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}]


CHAT = {"model": "smollm2", "max_completion_tokens": 40, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tool_caller.make(SMOLLM2, tmp_path_factory.mktemp("caller"))


@pytest.fixture(scope="module")
def server(model):
    with Server(model, "--numerics", "invariant", "--served-model-name", "smollm2", http=True) as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def test_a_call_that_the_model_writes_is_a_tool_call_and_its_answer_goes_on(client):
    choice = client.chat.completions.create(messages=tool_prompt.MESSAGES, tools=TOOLS, **CHAT).choices[0]
    call, = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "add", {"a": 2, "b": 2})
    after = [*tool_prompt.MESSAGES, choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "4"}]
    answer = client.chat.completions.create(messages=after, tools=TOOLS, **CHAT).choices[0]
    assert (answer.message.content, answer.finish_reason, answer.message.tool_calls) == ("It is 4.", "stop", None)


def test_a_stream_brings_the_same_call_and_no_text_of_it(client):
    with client.chat.completions.stream(messages=tool_prompt.MESSAGES, tools=TOOLS, **CHAT) as stream:
        contents = [event.delta for event in stream if event.type == "content.delta"]
        choice = stream.get_final_completion().choices[0]
    call, = choice.message.tool_calls
    assert "".join(contents) == "" and not choice.message.content and choice.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 2})


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_on_offer_the_call_is_text(client, more):
    choice = client.chat.completions.create(messages=tool_prompt.MESSAGES, **CHAT, **more).choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    assert choice.message.content == tool_prompt.called(2, 2)


def test_a_call_that_is_cut_off_stays_text(client):
    choice = client.chat.completions.create(messages=tool_prompt.MESSAGES, tools=TOOLS, **{**CHAT, "max_completion_tokens": 8}).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    assert choice.message.content.startswith('<tool_call>\n{"name"')


def test_a_chat_of_ids_goes_on_after_exactly_these_ids(client, server, model):
    """As verifiers sends it: the messages again, and the ids of what came before."""
    ids = transformers.AutoTokenizer.from_pretrained(model).apply_chat_template(
        tool_prompt.MESSAGES, add_generation_prompt=True, return_dict=False)
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "not rendered"}], "tools": TOOLS, "tokens": ids, "n": 1,
            "temperature": 0.7, "seed": 5, "max_completion_tokens": 12, "logprobs": True, "return_token_ids": True}
    answer = client.post("/chat/completions/tokens", body=body, cast_to=object)
    wanted, = grpc_completions(load_stubs(), server, ids, temperature=0.7, seed=5, max_new_tokens=12)
    assert answer["object"] == "chat.completion" and answer["prompt_token_ids"] == ids
    assert answer["choices"][0]["token_ids"] == list(wanted.token_ids)
    assert [one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]] == pytest.approx(list(wanted.behaviour_logprobs), abs=1e-6)
    with pytest.raises(openai.BadRequestError, match="tokens is missing, want at least one token id"):
        client.post("/chat/completions/tokens", body={"messages": tool_prompt.MESSAGES}, cast_to=object)


def test_the_list_of_models_says_where_the_model_came_from(client, model):
    one, = client.models.list().data
    assert (one.id, one.root) == ("smollm2", str(model))


def test_numbers_that_a_command_line_passed_on_as_texts_are_taken(client):
    texts = [client.chat.completions.create(messages=tool_prompt.MESSAGES, model="smollm2", max_completion_tokens=8, temperature=0.9,
                                            extra_body={"seed": seed}).choices[0].message.content for seed in (3, "3")]
    assert texts[0] == texts[1]
