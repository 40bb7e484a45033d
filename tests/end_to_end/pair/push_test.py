"""A weight push into the real server binary while it generates: spans, digests, and what is served after."""
import os
import subprocess
import sys

import grpc
import pytest
from grpc_tools import protoc

SOURCE = os.environ["TANDEM_SOURCE"]
from rollout_client import as_caller
from rollout_client import history_arguments
from weight_pusher import WeightPusher, tensor_bytes

SERVER = os.path.join(os.environ["TANDEM_BIN"], "rollout_server")


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("stubs"))
    arguments = ["protoc", f"-I{SOURCE}", f"--python_out={out}", f"--grpc_python_out={out}"]
    protos = [f"{SOURCE}/proto/{name}.proto" for name in ("rollout", "weights")]
    assert protoc.main([*arguments, *protos]) == 0
    sys.path.insert(0, out)
    from proto import rollout_pb2, rollout_pb2_grpc, weights_pb2, weights_pb2_grpc
    return rollout_pb2, rollout_pb2_grpc, weights_pb2, weights_pb2_grpc


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("model"))
    subprocess.run([sys.executable, f"{SOURCE}/tests/parity/make_models.py", "--kind", "llama",
                    "--vocab-size", "354", "--out", directory], check=True, timeout=120)
    return directory


@pytest.fixture
def channel(model):
    process = subprocess.Popen([SERVER, "--model", model, "--listen", "127.0.0.1:0", "--dtype",
                                "fp32", *history_arguments()], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("listening on "), (line, process.poll())
    with as_caller(grpc.insecure_channel(line.split()[-1])) as opened:
        yield opened
    process.terminate()
    assert process.wait(timeout=120) == 0


def sample(rollout, pb, group_id):
    """Starts a group whose result depends on its seed alone; returns the stream."""
    sampling = pb.SamplingParams(temperature=1, max_new_tokens=500, seed=3, ignore_eos=True)
    return rollout.GenerateGroup(pb.GenerateGroupRequest(
        run_id="run", group_id=group_id, prompt_token_ids=[5, 6, 7], num_completions=4,
        sampling=sampling), timeout=240)


def completions_of(call):
    return {e.completion.index: e.completion for e in call if e.HasField("completion")}


def versions_of(completion):
    return [span.weight_version for span in completion.version_spans]


def commit_while_sampling(rollout, rollout_pb, pusher, version):
    """Commits `version` once the group has tokens; returns the group's completions."""
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
    for version in range(1, 9):  # on a busy machine a group may end before the pause reaches it
        completions = commit_while_sampling(rollout, rollout_pb, pusher, version)
        if versions_of(completions[0]) == [version - 1, version]:
            break
    for completion in completions.values():
        assert versions_of(completion) == [version - 1, version]
        assert sum(s.num_tokens for s in completion.version_spans) == 500
        assert len(completion.token_ids) == 500
    # The same bytes were pushed, so a fresh group with the same seed draws the same tokens.
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
