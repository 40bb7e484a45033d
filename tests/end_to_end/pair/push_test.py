"""A weight push to the real server while it generates: spans, digests, and completions afterwards."""
import grpc
import pytest

from rollout_client import Server, load_stubs
from weight_pusher import WeightPusher, tensor_bytes


@pytest.fixture(scope="module")
def stubs():
    return load_stubs()


@pytest.fixture
def channel(model):
    with Server(model, "--dtype", "fp32") as server:
        yield server.channel
        server.process.terminate()
        assert server.process.wait(timeout=120) == 0


def sample(rollout, pb, group_id):
    """Starts a group whose result depends only on its seed, and returns the stream."""
    sampling = pb.SamplingParams(temperature=1, max_new_tokens=500, seed=3, ignore_eos=True)
    return rollout.GenerateGroup(pb.GenerateGroupRequest(
        run_id="run", group_id=group_id, prompt_token_ids=[5, 6, 7], num_completions=4,
        sampling=sampling), timeout=240)


def completions_of(call):
    return {e.completion.index: e.completion for e in call if e.HasField("completion")}


def versions_of(completion):
    return [span.weight_version for span in completion.version_spans]


def commit_while_sampling(rollout, rollout_pb, pusher, version):
    """Commits `version` when the group has tokens, and returns the completions of the group."""
    def sampled():
        return rollout.GetInfo(rollout_pb.GetInfoRequest(), timeout=120).num_tokens_sampled

    pusher.stage(version)
    before = sampled()
    call = sample(rollout, rollout_pb, group_id=version)
    while sampled() == before:
        pass
    pusher.pause()
    committed = pusher.commit(version)
    pusher.resume()
    assert committed.live_version == version
    assert list(committed.live_digests) == list(pusher.info.live_digests)
    return completions_of(call)


def test_a_commit_in_mid_generation_labels_the_tokens_after_it(channel, stubs, model):
    rollout_pb, rollout_grpc, weights_pb, weights_grpc = stubs
    rollout = rollout_grpc.RolloutServiceStub(channel)
    pusher = WeightPusher(weights_grpc.WeightServiceStub(channel), weights_pb, tensor_bytes(model))
    for version in range(1, 9):  # on a busy machine, a group may end before the pause
        completions = commit_while_sampling(rollout, rollout_pb, pusher, version)
        if versions_of(completions[0]) == [version - 1, version]:
            break
    for completion in completions.values():
        assert versions_of(completion) == [version - 1, version]
        assert sum(s.num_tokens for s in completion.version_spans) == 500
        assert len(completion.token_ids) == 500
    # The same bytes were pushed, so a new group with the same seed gets the same tokens.
    fresh = completions_of(sample(rollout, rollout_pb, group_id=1000))
    for index, completion in completions.items():
        assert list(fresh[index].token_ids) == list(completion.token_ids)
        assert versions_of(fresh[index]) == [version]


def test_a_flipped_byte_leaves_the_loaded_weights_and_the_next_push_works(channel, stubs, model):
    _, _, weights_pb, weights_grpc = stubs
    pusher = WeightPusher(weights_grpc.WeightServiceStub(channel), weights_pb, tensor_bytes(model))
    victim = pusher.info.tensors[3].name
    pusher.stage(1, flip=victim)
    with pytest.raises(grpc.RpcError) as error:
        pusher.commit(1)
    assert error.value.code() == grpc.StatusCode.DATA_LOSS
    assert victim in error.value.details()
    assert pusher.stub.GetWeightInfo(weights_pb.GetWeightInfoRequest(), timeout=120).live_version == 0
    pusher.stage(1)
    assert pusher.commit(1).live_version == 1
