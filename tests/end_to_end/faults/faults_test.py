"""The rollout server in unusual situations: it is told to stop, receives malformed requests, and gets new weights during
long completions with each policy for groups in flight."""
import random
import signal
import threading

import grpc
import numpy as np
import pytest

from rollout_client import Server, load_stubs
from weight_pusher import WeightPusher, tensor_bytes

rollout, rollout_grpc, weights, weights_grpc = load_stubs()
PROMPT = [5, 6, 7, 8]
NEW_TOKENS = 400
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def served(model):
    with Server(model, "--dtype", "fp32") as server:
        yield server


def request_of(group_id, tokens=NEW_TOKENS, completions=3):
    return rollout.GenerateGroupRequest(
        run_id="run", group_id=group_id, prompt_token_ids=PROMPT, num_completions=completions,
        sampling=rollout.SamplingParams(temperature=1, max_new_tokens=tokens, seed=group_id, ignore_eos=True))


def completions_of(call):
    return [answer.completion for answer in call if answer.HasField("completion")]


def wait_until_sampling(stub, more_than=0):
    while stub.GetInfo(rollout.GetInfoRequest(), timeout=120).num_tokens_sampled <= more_than:
        pass


def test_fault_2_sigterm_lets_running_groups_end_and_exits_with_0(model):
    with Server(model, "--dtype", "fp32") as server:
        stub = rollout_grpc.RolloutServiceStub(server.channel)
        request = request_of(1)
        request.run_id = ""
        calls = []
        for group in range(3):
            request.group_id = group
            calls.append(stub.GenerateGroup(request, timeout=240))
        wait_until_sampling(stub)
        server.process.send_signal(signal.SIGTERM)
        for call in calls:  # no error, nothing missing
            assert [len(c.token_ids) for c in completions_of(call)] == [NEW_TOKENS] * 3
        assert server.process.wait(timeout=120) == 0


def test_fault_2_what_runs_longer_than_the_drain_is_cut_with_a_code_that_says_ask_elsewhere(model):
    with Server(model, "--dtype", "fp32", "--set", "server.drain_seconds=0.2") as server:
        stub = rollout_grpc.RolloutServiceStub(server.channel)
        calls = [stub.GenerateGroup(request_of(group), timeout=240) for group in range(60)]
        wait_until_sampling(stub)
        server.process.send_signal(signal.SIGTERM)
        ends = []
        for call in calls:
            try:
                assert [len(c.token_ids) for c in completions_of(call)] == [NEW_TOKENS] * 3, "whole, or an error"
                ends.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                ends.append(error.code())
        assert set(ends) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE} and grpc.StatusCode.UNAVAILABLE in ends
        assert server.process.wait(timeout=120) == 0


BAD_REQUESTS = {
    "oversized_prompt": dict(prompt_token_ids=[5] * 100_000),
    "no_prompt": dict(prompt_token_ids=[]),
    "negative_id": dict(prompt_token_ids=[5, -7]),
    "id_outside_the_vocabulary": dict(prompt_token_ids=[5, 1 << 30]),
    "negative_completions": dict(num_completions=-1),
    "endless_completions": dict(num_completions=(1 << 31) - 1),
    "negative_tokens": dict(sampling=rollout.SamplingParams(temperature=1, max_new_tokens=-5)),
    "endless_tokens": dict(sampling=rollout.SamplingParams(temperature=1, max_new_tokens=(1 << 31) - 1)),
    "negative_temperature": dict(sampling=rollout.SamplingParams(temperature=-1, max_new_tokens=5)),
    "temperature_near_zero": dict(sampling=rollout.SamplingParams(temperature=6.4e-44, max_new_tokens=5)),
    "nan_temperature": dict(sampling=rollout.SamplingParams(temperature=float("nan"), max_new_tokens=5)),
    "infinite_temperature": dict(sampling=rollout.SamplingParams(temperature=float("inf"), max_new_tokens=5)),
    "nan_top_p": dict(sampling=rollout.SamplingParams(temperature=1, max_new_tokens=5, top_p=float("nan"))),
    "unknown_delivery": dict(delivery=77),
    "negative_batch": dict(admission_batch=rollout.AdmissionBatch(batch_id=1, num_groups=-4)),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_fault_21_a_request_that_makes_no_sense_is_refused_and_the_server_lives(served, name):
    fields = dict(group_id=1, prompt_token_ids=PROMPT, num_completions=1,
                  sampling=rollout.SamplingParams(temperature=1, max_new_tokens=5))
    fields.update(BAD_REQUESTS[name])
    stub = rollout_grpc.RolloutServiceStub(served.channel)
    with pytest.raises(grpc.RpcError) as error:
        list(stub.GenerateGroup(rollout.GenerateGroupRequest(**fields), timeout=120))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details(), "says why"
    stub.GetInfo(rollout.GetInfoRequest(), timeout=120)


# The code of gRPC for bytes that do not parse; 1.51 uses UNIMPLEMENTED.
NO_MESSAGE = {grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}


@pytest.mark.parametrize("content, codes", [
    (random.Random(1).randbytes(300), NO_MESSAGE),
    # Field 5 (sampling) with field 9 (a stop string) that is not UTF-8.
    (b"\x1a\x01\x05\x20\x01\x2a\x06\x4a\x04\xff\xfe\x80\x80", NO_MESSAGE),
    # A length that is far larger than the message.
    (b"\x1a\xff\xff\xff\xff\x0f\x05", NO_MESSAGE),
    (b"\x1a" + (300 << 20).to_bytes(4, "little") + bytes(300 << 20), {grpc.StatusCode.RESOURCE_EXHAUSTED}),
], ids=["garbage", "no_utf8", "wrong_length", "300_MiB"])
def test_fault_21_bytes_that_are_no_request_are_refused_and_the_server_lives(served, content, codes):
    with grpc.insecure_channel(served.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_stream("/tandem.rollout.v1.RolloutService/GenerateGroup")
        with pytest.raises(grpc.RpcError) as error:
            list(call(content, timeout=120))
    assert error.value.code() in codes, error.value.details()
    rollout_grpc.RolloutServiceStub(served.channel).GetInfo(rollout.GetInfoRequest(), timeout=120)


def shifted(data, seed):
    """The same tensors with noise."""
    noise = np.random.default_rng(seed)
    moved = {}
    for name, content in data.items():
        values = np.frombuffer(content, np.float32)
        moved[name] = (values + noise.normal(0, 0.02, values.shape)).astype(np.float32).tobytes()
    return moved


def largest_gap_to_live_weights(stub, completion, first=0):
    """max |recorded log-prob - log-prob of the live weights| over the tokens from `first` on."""
    ids = PROMPT + list(completion.token_ids)
    answer = stub.Score(rollout.ScoreRequest(
        run_id="run", sequences=[rollout.ScoreSequence(token_ids=ids)]), timeout=240)
    live = np.array(answer.scores[0].logprobs[len(PROMPT):])
    return np.abs(live - np.array(completion.raw_logprobs))[first:].max()


def spans_of(completion):
    return [(span.weight_version, span.num_tokens) for span in completion.version_spans]


@pytest.mark.parametrize("policy", ["keep", "recompute", "abort", "drain"])
def test_fault_26_new_weights_in_the_middle_of_long_completions(model, policy):
    with Server(model, "--dtype", "fp32", "--set", f"server.engine.in_flight={policy}") as server:
        stub = rollout_grpc.RolloutServiceStub(server.channel)
        pusher = WeightPusher(weights_grpc.WeightServiceStub(server.channel), weights, tensor_bytes(model))
        pusher.set_data(shifted(pusher.data, seed=1))
        pusher.stage(1)
        call = stub.GenerateGroup(request_of(1), timeout=240)
        wait_until_sampling(stub)
        if policy == "drain":  # a paused server would never finish the group
            committed = threading.Thread(target=pusher.commit, args=(1,))
            committed.start()
        else:
            pusher.pause()
            pusher.commit(1)
            pusher.resume()
        if policy == "abort":
            with pytest.raises(grpc.RpcError) as error:
                list(call)
            assert error.value.code() == grpc.StatusCode.ABORTED
            assert "new weights" in error.value.details()
        else:
            completions = completions_of(call)
            assert [sum(n for _, n in spans_of(c)) for c in completions] == [NEW_TOKENS] * 3
        if policy == "drain":
            committed.join()
            assert [spans_of(c) for c in completions] == [[(0, NEW_TOKENS)]] * 3
        elif policy in ("keep", "recompute"):
            for completion in completions:
                (before, count), (after, _) = spans_of(completion)
                assert (before, after) == (0, 1)
                gap = largest_gap_to_live_weights(stub, completion, first=count)
                if policy == "recompute":
                    assert gap < TOLERANCE
                else:  # later tokens attend to KV of the previous weights, so their log-probs differ from those of a prefill
                    assert gap > 10 * TOLERANCE
                # Earlier tokens were not sampled with the new weights.
                assert largest_gap_to_live_weights(stub, completion) > 10 * TOLERANCE
        fresh = completions_of(stub.GenerateGroup(request_of(2), timeout=240))
        for completion in fresh:
            assert spans_of(completion) == [(1, NEW_TOKENS)]
            assert largest_gap_to_live_weights(stub, completion) < TOLERANCE


def test_fault_27_the_same_prompt_across_a_push_is_as_without_the_prefix_index(model):
    data = shifted(tensor_bytes(model), seed=2)

    def draw_around_a_push(*flags):
        with Server(model, "--dtype", "fp32", *flags) as server:
            stub = rollout_grpc.RolloutServiceStub(server.channel)
            pusher = WeightPusher(weights_grpc.WeightServiceStub(server.channel), weights, tensor_bytes(model))
            request = request_of(1, tokens=20)
            request.prompt_token_ids.extend(range(20, 100))
            drawn = []
            for step in range(4):
                request.group_id = step
                if step == 2:
                    pusher.set_data(data)
                    pusher.push(1)
                drawn += sorted((c.index, tuple(c.token_ids), tuple(c.behaviour_logprobs), any(c.prefix_cached))
                                for c in completions_of(stub.GenerateGroup(request, timeout=240)))
            return drawn

    cached, plain = draw_around_a_push(), draw_around_a_push("--set", "server.engine.prefix_cache=false")
    assert [one[:3] for one in cached] == [one[:3] for one in plain]
    # Groups 1 and 3 found their prompt in the prefix index; 0 and 2 (the first after the push) did not.
    assert [one[3] for one in cached] == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    assert not any(one[3] for one in plain)
    assert cached[0][1] != cached[6][1], "the weights differ"
