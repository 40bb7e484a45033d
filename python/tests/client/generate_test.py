"""Groups and scores of a real server in numerics mode exact, by both clients: the same values as one another, and as scores."""
import asyncio

import grpc
import numpy as np
import pytest

from tandem_rl import launch
from tandem_rl._proto import rollout_pb2, rollout_pb2_grpc
from tandem_rl.client import AsyncRolloutClient, RolloutClient, VersionSpan

PROMPT = [5, 6, 7, 8]
ALL_IDS = range(354)  # as stop ids, they end every turn after one token
ARRAYS = ("token_ids", "behaviour_logprobs", "raw_logprobs", "entropies", "logprob_second_moments", "kept_mass")


@pytest.fixture(scope="module")
def server(model):
    with launch.RolloutServer(model, dtype="fp32", numerics="exact", environment={"OMP_NUM_THREADS": "1"}) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as one:
        yield one


def on(server, use):
    """The result of `use`, a coroutine function of an asynchronous client of the server."""
    async def main():
        async with AsyncRolloutClient(server.address) as client:
            return await use(client)
    return asyncio.run(main())


def assert_same(one, other):
    assert one.index == other.index and one.text == other.text and one.finish_reason == other.finish_reason
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_a_group_has_the_values_of_the_wire_as_arrays_of_one_length(server, client):
    group = client.generate_group(PROMPT, 3, max_new_tokens=9, temperature=0.8, seed=11)
    request = rollout_pb2.GenerateGroupRequest(
        group_id=1, prompt_token_ids=PROMPT, num_completions=3,
        sampling=rollout_pb2.SamplingParams(temperature=0.8, max_new_tokens=9, seed=11))
    with grpc.insecure_channel(server.address) as channel:
        events = list(rollout_pb2_grpc.RolloutServiceStub(channel).GenerateGroup(request, timeout=60))
    wire = {event.completion.index: event.completion for event in events if event.WhichOneof("event") == "completion"}
    assert [completion.index for completion in group.completions] == [0, 1, 2] == sorted(wire)
    for completion in group.completions:
        sent = wire[completion.index]
        assert completion.token_ids.dtype == np.int32 and completion.behaviour_logprobs.dtype == np.float32
        for name in ARRAYS:
            assert getattr(completion, name).tolist() == list(getattr(sent, name)), name
        assert completion.prefix_cached.dtype == np.bool_ and len(completion.prefix_cached) == len(completion.token_ids)
        assert completion.decode_batch_sizes.max() == 3 and completion.decode_batch_sizes.dtype == np.int32
        assert completion.version_spans == (VersionSpan(0, len(completion.token_ids)),)
        assert completion.weight_versions.tolist() == [0] * len(completion.token_ids)
        assert completion.text == sent.text and completion.seed == 11 and not completion.greedy and completion.sampled.all()
        assert completion.support is None and completion.top_logprobs is None and completion.segments == ()
    assert group.greedy_baseline is None and group.summary.num_completions == 3 and not group.summary.incomplete


def test_a_score_of_the_sampled_tokens_is_their_behaviour_log_probs_bit_for_bit(client):
    group = client.generate_group(np.array(PROMPT), 3, max_new_tokens=12, temperature=0.7, top_p=0.9, seed=4)
    rows = [[*PROMPT, *completion.token_ids] for completion in group.completions]
    for path in ("prefill", "decode"):
        scores = client.score(rows, num_prompt_tokens=len(PROMPT), temperature=0.7, top_p=0.9, path=path)
        assert scores.weight_version == 0 and len(scores.sequences) == 3
        for completion, score in zip(group.completions, scores.sequences, strict=True):
            assert score.logprobs[:len(PROMPT)].tolist() == [0.0] * len(PROMPT)
            for mine, scored in (("behaviour_logprobs", "logprobs"), ("raw_logprobs", "raw_logprobs"), ("entropies", "entropies"),
                                 ("logprob_second_moments", "logprob_second_moments"), ("kept_mass", "kept_mass")):
                np.testing.assert_array_equal(getattr(score, scored)[len(PROMPT):], getattr(completion, mine), err_msg=mine)


def test_both_clients_and_both_ways_of_asking_give_the_same_completions_for_a_seed(server, client):
    asked = {"max_new_tokens": 10, "seed": 99, "top_k": 20}
    group = client.generate_group(PROMPT, 4, **asked)

    async def stream(asynchronous):
        async with asynchronous.stream_group(PROMPT, 4, **asked) as events:
            return [completion async for completion in events], events.summary
    streamed, summary = on(server, stream)
    with client.stream_group(PROMPT, 4, **asked) as events:
        mine = list(events)
        whole = events.group()
    others = on(server, lambda asynchronous: asynchronous.generate_group(PROMPT, 4, **asked))
    for completions in (others.completions, whole.completions, sorted(mine, key=lambda one: one.index),
                        sorted(streamed, key=lambda one: one.index)):
        for one, other in zip(group.completions, completions, strict=True):
            assert_same(one, other)
    assert summary.num_completions == 4


def test_two_groups_of_one_prompt_draw_what_one_group_would(client):
    whole = client.generate_group(PROMPT, 3, max_new_tokens=6, seed=5)
    rest = client.generate_group(PROMPT, 1, max_new_tokens=6, seed=5, first_completion=2)
    assert_same(rest.completions[0], whole.completions[2])


def test_without_a_seed_each_call_draws_another_one_and_tells_it(client):
    one, other = (client.generate_group(PROMPT, 1, max_new_tokens=6) for _ in range(2))
    assert one.completions[0].seed != other.completions[0].seed
    again = client.generate_group(PROMPT, 1, max_new_tokens=6, seed=one.completions[0].seed)
    assert_same(one.completions[0], again.completions[0])


def test_the_greedy_baseline_comes_beside_the_completions(client):
    group = client.generate_group(PROMPT, 2, max_new_tokens=6, seed=1, greedy_baseline=True, top_logprobs=3)
    greedy = client.generate_group(PROMPT, 1, max_new_tokens=6, temperature=0.0).completions[0]
    assert [completion.index for completion in group.completions] == [0, 1] and group.greedy_baseline.index == 2
    assert group.greedy_baseline.greedy and greedy.greedy
    assert group.greedy_baseline.token_ids.tolist() == greedy.token_ids.tolist()
    assert group.greedy_baseline.top_logprobs.ids[:, 0].tolist() == greedy.token_ids.tolist(), "the likeliest first"


def test_top_log_probs_and_supports_come_on_request(client):
    group = client.generate_group(PROMPT, 2, max_new_tokens=6, seed=2, top_k=5, return_support=True, top_logprobs=5)
    for completion in group.completions:
        top = completion.top_logprobs
        assert top.ids.shape == top.logprobs.shape == (len(completion.token_ids), 5)
        assert top.ids.dtype == np.int32 and top.logprobs.dtype == np.float32
        for t, support in enumerate(completion.support):
            assert sorted(top.ids[t]) == support.tolist() and completion.token_ids[t] in support
            np.testing.assert_allclose(np.exp(top.logprobs[t]).sum(), 1.0, rtol=1e-5)
            assert top.logprobs[t][top.ids[t] == completion.token_ids[t]] == completion.behaviour_logprobs[t]


def test_stop_strings_and_stop_ids_end_a_completion_and_say_so(client):
    one = client.generate_group(PROMPT, 1, max_new_tokens=20, seed=3, stop_token_ids=ALL_IDS).completions[0]
    assert one.finish_reason == "stop" and len(one.token_ids) == 1
    long = client.generate_group(PROMPT, 1, max_new_tokens=20, seed=3, ignore_eos=True).completions[0]
    assert long.finish_reason == "length" and len(long.token_ids) == 20
    cut = client.generate_group(PROMPT, 1, max_new_tokens=20, seed=3, ignore_eos=True, stop_strings=[long.text[3:6]]).completions[0]
    assert cut.finish_reason == "stop_string" and long.text[3:6] not in cut.text and long.text.startswith(cut.text)


def test_a_completion_of_several_turns_goes_on_with_what_it_is_given(server, client):
    asked = {"max_new_tokens": 4, "seed": 8, "stop_token_ids": ALL_IDS, "max_turns": 3, "max_completion_tokens": 40}
    turns = []

    def answer(turn):
        turns.append(turn)
        return [100 + turn.index, 200] if turn.turn == 1 else None
    group = client.generate_group(PROMPT, 2, answer=answer, **asked)
    assert sorted((turn.index, turn.turn, len(turn.token_ids), turn.finish_reason) for turn in turns) == [
        (0, 1, 1, "stop"), (0, 2, 1, "stop"), (1, 1, 1, "stop"), (1, 2, 1, "stop")]
    for completion in group.completions:
        assert completion.token_ids[1:3].tolist() == [100 + completion.index, 200]
        assert [(one.given, one.num_tokens) for one in completion.segments] == [(False, 1), (True, 2), (False, 1)]
        assert completion.sampled.tolist() == [True, False, False, True]
        assert completion.weight_versions.tolist() == [0, -1, -1, 0]
        assert np.isnan(completion.behaviour_logprobs).tolist() == [False, True, True, False]

    async def answer_later(turn):
        return answer(turn)
    other = on(server, lambda asynchronous: asynchronous.generate_group(PROMPT, 2, answer=answer_later, **asked))
    for one, same in zip(group.completions, other.completions, strict=True):
        assert_same(one, same)


def test_turns_are_answered_at_the_same_time_by_a_coroutine(server):
    async def use(client):
        both_asked, asked = asyncio.Event(), []

        async def answer(turn):
            asked.append(turn.index)
            if len(asked) == 2:
                both_asked.set()
            await both_asked.wait()
        return await client.generate_group(PROMPT, 2, max_new_tokens=4, seed=8, stop_token_ids=ALL_IDS, max_turns=2, answer=answer,
                                           deadline_seconds=60)
    assert [len(completion.token_ids) for completion in on(server, use).completions] == [1, 1]


def test_info_has_every_field_that_the_server_sends(server, client, model):
    info = client.info()
    assert {field.name for field in rollout_pb2.GetInfoResponse.DESCRIPTOR.fields} == set(vars(info))
    assert (info.model_path, info.dtype, info.numerics, info.vocab_size) == (str(model), "fp32", "exact", 354)
    assert info.eos_token_ids == (2,) and info.adapters == () and info.live_weight_version == 0
    assert on(server, lambda asynchronous: asynchronous.info()).tokenizer_hash == info.tokenizer_hash


def test_scores_of_both_clients_agree_and_say_the_numbers_of_prompt_tokens_apart(server, client):
    rows, prompts = [[5, 6, 7], np.array([8, 9, 10, 11])], [1, 3]
    mine = client.score(rows, num_prompt_tokens=prompts)
    others = on(server, lambda asynchronous: asynchronous.score(rows, num_prompt_tokens=prompts))
    for row, prompt, one, other in zip(rows, prompts, mine.sequences, others.sequences, strict=True):
        assert len(one.logprobs) == len(row) and (one.logprobs[:prompt] == 0).all() and (one.logprobs[prompt:] < 0).all()
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
        assert one.ranks.dtype == np.int32 and ((one.ranks == 0) <= (one.logprobs > np.log(1 / 354))).all()
    rounded = client.score(rows, num_prompt_tokens=prompts, body_bits=8)
    assert 0 < np.abs(rounded.sequences[1].logprobs - mine.sequences[1].logprobs).max() < 0.5


def test_a_proxy_for_http_is_not_asked_for_the_way_to_a_server(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with server.client() as client:
        assert client.info().dtype == "fp32"


def test_a_closed_client_says_so(server):
    client = RolloutClient(server.address)
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.info()
