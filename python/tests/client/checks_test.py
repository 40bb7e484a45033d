"""The parts of the client that need no server: errors, deadlines, requests, and the checks of what a server sends."""
import inspect
import types

import grpc
import numpy as np
import pytest

from tandem_rl._proto import rollout_pb2 as pb
from tandem_rl.client import (GroupOptions, InvalidRequest, NotReachable, RolloutClient, RolloutError, ScoreOptions, ServerBusy,
                              caller, token_ids)
from tandem_rl.client.deadline import Deadline
from tandem_rl.client.errors import from_rpc
from tandem_rl.client.group_assembly import GroupAssembly
from tandem_rl.client.group_request import group_request
from tandem_rl.client.scores import score_request, scores_of
from tandem_rl.client.tls import host_and_port, name_in, role_of

HASH_OF_7_8 = 0x26D58469914B3C86  # of XXH3-64 of 07000000 08000000


def rpc_error(code, details="why", **metadata):
    trailing = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    return types.SimpleNamespace(code=lambda: code, details=lambda: details, trailing_metadata=lambda: trailing)


# --- errors and deadlines


@pytest.mark.parametrize("code, metadata, kind, after", [
    (grpc.StatusCode.RESOURCE_EXHAUSTED, {"tandem_refusal": "QUEUE_FULL", "retry_after_ms": "250"}, ServerBusy, 0.25),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, {"tandem_refusal": "MEMORY_FULL"}, ServerBusy, None),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, {"tandem_refusal": "DEADLINE_BEFORE_START", "retry_after_ms": "x"}, ServerBusy, None),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, {"tandem_refusal": "TOO_LARGE"}, InvalidRequest, None),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, {}, RolloutError, None),  # gRPC's own, of a message that is too large
    (grpc.StatusCode.INVALID_ARGUMENT, {}, InvalidRequest, None),
    (grpc.StatusCode.UNAVAILABLE, {}, NotReachable, None),
    (grpc.StatusCode.ABORTED, {}, RolloutError, None),
])
def test_the_class_of_an_error_says_what_a_caller_can_do(code, metadata, kind, after):
    error = from_rpc(rpc_error(code, **metadata), "host:1")
    assert type(error) is kind and error.code == code.name and error.refusal == metadata.get("tandem_refusal", "")
    assert error.retry_after_seconds == after and str(error).startswith("host:1: why (")


def test_a_busy_server_is_asked_again_within_the_deadline_only():
    now = [100.0]
    deadline = Deadline(2.0, clock=lambda: now[0])

    def busy(after):
        return ServerBusy("", code="RESOURCE_EXHAUSTED", refusal="QUEUE_FULL", retry_after_seconds=after)
    assert deadline.pause_after(busy(0.5)) == 0.5 and deadline.pause_after(busy(None)) == 1.0
    assert deadline.pause_after(busy(2.0)) is None, "the call would have no time left"
    assert deadline.pause_after(RolloutError("", code="ABORTED")) is None
    now[0] = 101.6
    assert deadline.left() == pytest.approx(0.4) and deadline.pause_after(busy(0.5)) is None
    now[0] = 200.0
    assert deadline.left() == 0.0


# --- requests


def test_the_options_of_both_calls_have_the_names_of_their_requests():
    for options, request, own in ((GroupOptions, group_request, {"prompt_token_ids", "num_completions", "max_new_tokens", "run_id"}),
                                  (ScoreOptions, score_request, {"sequences", "run_id"})):
        assert set(options.__annotations__) == set(inspect.signature(request).parameters) - own


def test_a_request_has_what_was_asked_for_and_the_hash_of_its_prompt():
    request = group_request(np.array([7, 8]), 3, max_new_tokens=5, temperature=0.5, stop_strings=["a"], seed=2**64 - 1, group_id=9,
                            max_turns=4)
    assert list(request.prompt_token_ids) == [7, 8] and request.prompt_hash == HASH_OF_7_8
    assert (request.num_completions, request.group_id, request.sampling.seed) == (3, 9, 2**64 - 1)
    assert (request.sampling.temperature, list(request.sampling.stop_strings), request.sampling.max_new_tokens) == (0.5, ["a"], 5)
    assert (request.turns.max_turns, request.turns.max_completion_tokens) == (4, 20)
    assert not group_request([7], 1, max_new_tokens=5).HasField("turns")


def test_every_option_of_a_group_reaches_its_field():
    request = group_request(
        [7, 8], 3, max_new_tokens=5, run_id="run", temperature=0.5, top_k=6, top_p=0.25, min_p=0.125, min_new_tokens=2,
        stop_token_ids=[9], stop_strings=["b"], seed=11, ignore_eos=True, top_logprobs=12, return_support=True, adapter="a", priority=13,
        greedy_baseline=True, first_completion=14, min_weight_version=15, group_id=16, max_turns=2, max_completion_tokens=17)
    assert request == pb.GenerateGroupRequest(
        run_id="run", group_id=16, prompt_token_ids=[7, 8], num_completions=3, min_weight_version=15, prompt_hash=HASH_OF_7_8,
        priority=13, greedy_baseline=True, first_completion=14, adapter="a",
        turns=pb.Turns(max_turns=2, max_completion_tokens=17),
        sampling=pb.SamplingParams(
            temperature=0.5, top_k=6, top_p=0.25, min_p=0.125, max_new_tokens=5, min_new_tokens=2, stop_token_ids=[9],
            stop_strings=["b"], seed=11, ignore_eos=True, return_support=True, top_logprobs=12))


def test_every_option_of_a_score_reaches_its_field():
    request = score_request([[7, 8], [7, 8]], run_id="run", num_prompt_tokens=[1, 0], temperature=0.5, top_k=6, top_p=0.25, min_p=0.125,
                            path="decode", alone=True, as_served=True, adapter="a", body_bits=8, head_bits=9, kv_bits=10, rotary_bits=11)
    assert request == pb.ScoreRequest(
        run_id="run", temperature=0.5, path=pb.SCORE_PATH_DECODE, top_k=6, top_p=0.25, min_p=0.125, alone=True, as_served=True,
        adapter="a", precision=pb.SitePrecision(body_bits=8, head_bits=9, kv_bits=10, rotary_bits=11),
        sequences=[pb.ScoreSequence(token_ids=[7, 8], token_hash=HASH_OF_7_8, num_prompt_tokens=prompt) for prompt in (1, 0)])


@pytest.mark.parametrize("scores", [[], [pb.SequenceScore(logprobs=[0, -1])]])
def test_scores_that_do_not_have_the_tokens_of_the_request_are_data_loss(scores):
    with pytest.raises(RolloutError, match="sequence 0 do not have its 2 tokens") as found:
        scores_of(score_request([[7, 8]]), pb.ScoreResponse(scores=scores))
    assert found.value.code == "DATA_LOSS"


def test_without_xxhash_nothing_is_hashed_or_checked(monkeypatch):
    monkeypatch.setattr(token_ids, "_xxhash", None)
    request = group_request([7, 8], 1, max_new_tokens=5)
    assert request.prompt_hash == 0
    assert GroupAssembly(request).take(completion(token_hash=1)).token_ids.tolist() == [7, 8]


@pytest.mark.parametrize("arguments, words", [
    ({"address": "localhost"}, "HOST:PORT"), ({"token": "t" * 32}, "never sent in plaintext"), ({"secret": "short"}, "32 to 256"),
    ({"secret": "x" * 31 + "\n"}, "printable"),
])
def test_what_can_never_work_is_a_value_error_at_once(arguments, words):
    with pytest.raises(ValueError, match=words):
        RolloutClient(**{"address": "localhost:1", **arguments})


def test_an_address_has_a_host_and_a_port():
    assert host_and_port("a.example:5") == ("a.example", 5) and host_and_port("[::1]:50051") == ("::1", 50051)


class Channels:
    """In the place of grpc."""

    def __init__(self):
        self.names = []

    def secure_channel(self, address, credentials, options):
        self.names.append(dict(options)["grpc.ssl_target_name_override"])
        return len(self.names)


def test_a_channel_is_made_anew_where_files_or_the_servers_name_have_changed(tmp_path, monkeypatch):
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("one")
    names = ["a.example"]
    monkeypatch.setattr(caller, "look_at_server", lambda address, directory, seconds: names[-1])
    one, channels = caller.Caller("localhost:1", tmp_path, None, None), Channels()

    def channel_after_a_look():
        assert one.needs_look()
        one.look(5)
        assert not one.needs_look()
        return one.channel(channels)
    assert channel_after_a_look() == one.channel(channels) == 1
    one.failed()
    assert channel_after_a_look() == 1, "nothing has changed"
    names.append("b.example")
    one.failed()
    assert channel_after_a_look() == 2 and channels.names == ["a.example", "b.example"]
    (tmp_path / "tls.crt").write_text("other")
    one.failed()
    assert channel_after_a_look() == 3
    assert one.close() == [1, 2, 3], "calls of the first two may have been under way"


# --- checks of completions


def completion(index=0, ids=(7, 8), spans=((3, 2),), token_hash=HASH_OF_7_8, **fields):
    """An event with a completion of two tokens that is right in everything, but for `fields`."""
    wire = {"behaviour_logprobs": [-1, -2], "raw_logprobs": [-1, -2], "entropies": [1, 1], "logprob_second_moments": [2, 2],
            "kept_mass": [1, 1], "decode_batch_sizes": [1, 1], "prefix_cached": [False, True], "finish_reason": 1, **fields}
    return pb.GenerateGroupResponse(completion=pb.Completion(
        index=index, token_ids=ids, token_hash=token_hash,
        version_spans=[pb.VersionSpan(weight_version=version, num_tokens=count) for version, count in spans], **wire))


DONE = pb.GenerateGroupResponse(done=pb.GroupDone(num_completions=2))


def assembly(**options):
    return GroupAssembly(group_request([5], 2, max_new_tokens=4, group_id=77, **options))


def test_a_group_is_put_together_in_the_order_of_indices():
    two = assembly(greedy_baseline=True)
    for index in (2, 1, 0):
        assert two.take(completion(index)).index == index
    assert two.take(DONE) is None
    group = two.group()
    assert [one.index for one in group.completions] == [0, 1] and group.greedy_baseline.index == 2 and group.group_id == 77


@pytest.mark.parametrize("event, words", [
    (completion(2), "want each index from 0 to 1 once"),
    (completion(token_hash=5), "the ids were changed on the way"),
    (completion(ids=(), token_hash=0), "has no tokens"),
    (completion(behaviour_logprobs=[-1]), "2 token_ids and 1 behaviour_logprobs"),
    (completion(kept_mass=[]), "2 token_ids and 0 kept_mass"),
    (completion(spans=((3, 1),)), "2 sampled tokens and version spans over 1"),
    (completion(spans=((4, 1), (3, 1))), "weight version 3 after version 4"),
    (completion(spans=((1, 2),)), "weight version 1 after version 2"),
    (completion(finish_reason=0), "no finish reason"),
    (completion(segments=[pb.Segment(num_tokens=1)]), "segments that do not add up"),
    (completion(support=[pb.TokenSupport(ids=[7])]), "1 support"),
    (pb.GenerateGroupResponse(turn=pb.Turn(index=1, turn=1, token_ids=[7, 8], token_hash=5)), "completion 1 turn 1"),
])
def test_an_answer_that_contradicts_itself_or_the_request_is_data_loss(event, words):
    with pytest.raises(RolloutError, match=words) as found:
        assembly(min_weight_version=2).take(event)
    assert found.value.code == "DATA_LOSS" and "group 77" in str(found.value)


def test_a_completion_that_comes_twice_or_not_at_all_is_data_loss():
    twice = assembly()
    twice.take(completion(0))
    with pytest.raises(RolloutError, match="once"):
        twice.take(completion(0))
    twice.take(DONE)
    with pytest.raises(RolloutError, match="ended with 1 of 2 completions"):
        twice.group()


def test_versions_of_tokens_follow_the_spans_and_leave_out_what_was_given():
    segments = [pb.Segment(num_tokens=2), pb.Segment(given=True, num_tokens=1), pb.Segment(num_tokens=1)]
    four = {name: [0] * 4 for name in ("behaviour_logprobs", "raw_logprobs", "entropies", "logprob_second_moments", "kept_mass",
                                       "decode_batch_sizes", "prefix_cached")}
    ids = np.array([1, 2, 3, 4], dtype=np.int32)
    taken = assembly().take(completion(ids=ids.tolist(), token_hash=token_ids.hash_of(ids), spans=((3, 1), (5, 2)), segments=segments,
                                       **four))
    assert taken.sampled.tolist() == [True, True, False, True] and taken.weight_versions.tolist() == [3, 5, -1, 5]


# --- names in certificates


def certificate(common_name, *names):
    return {"subject": ((("commonName", common_name),),), "subjectAltName": names}


@pytest.mark.parametrize("names, common_name, role", [
    ([("URI", "spiffe://a/tandem/rollout")], "tandem-client", "rollout"),
    ([("URI", "spiffe://a/tandem/rollout/pod-1")], "", "rollout"),
    ([("URI", "spiffe://a/tandem/client"), ("DNS", "localhost")], "tandem-rollout", "client"),
    ([("URI", "spiffe://a/tandem/rollout"), ("URI", "https://b")], "tandem-rollout", ""),
    ([("URI", "spiffe://a/other/rollout")], "tandem-rollout", ""),
    ([("URI", "spiffe://a")], "", ""),
    ([("DNS", "localhost")], "tandem-rollout", "rollout"),
    ([], "localhost", ""),
])
def test_the_role_of_a_certificate_is_the_one_of_the_cpp_callers(names, common_name, role):
    assert role_of(certificate(common_name, *names)) == role


def test_grpc_expects_a_name_that_the_certificate_has():
    uri, dns, ip = ("URI", "spiffe://a/tandem/rollout"), ("DNS", "*.pods.example"), ("IP Address", "192.0.2.7")
    assert name_in(certificate("c", uri, ip, dns)) == "any.pods.example"
    assert name_in(certificate("c", uri, ip)) == "192.0.2.7" and name_in(certificate("c", uri)) == "c"
