"""vLLM's endpoints of a rollout server: tokens in and out, pauses and weights, by HTTP and by gRPC."""
import json
import threading
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import safetensors.torch
import xxhash

import small_run
from rollout_client import Server, load_stubs, load_vllm_stubs
from waiting import wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Weights of the same shapes and other values."""
    return small_run.make_model(tmp_path_factory.mktemp("other"), "--seed", "99")


@pytest.fixture(scope="module")
def stubs():
    return load_stubs()


@pytest.fixture(scope="module")
def vllm():
    return load_vllm_stubs()


@pytest.fixture
def server(model):
    with Server(model, "--dtype", "fp32", "--numerics", "invariant", "--served-model-name", "small", http=True) as one:
        yield one


@pytest.fixture(scope="module")
def shared(model):
    with Server(model, "--dtype", "fp32", "--numerics", "invariant", "--served-model-name", "small", http=True) as one:
        yield one


def post(url, path, body=None):
    request = urllib.request.Request(url + path, data=b"" if body is None else json.dumps(body).encode(),
                                     headers={} if body is None else {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def get(url, path):
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return json.loads(answer.read())


def digests_of(folder):
    return {name: xxhash.xxh3_128_hexdigest(tensor.contiguous().numpy().tobytes())
            for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items()}


def drawn(server, stubs, seed=7, **sampling):
    """Ids, behaviour log-probs and versions through GenerateGroup."""
    rollout, rollout_grpc = stubs[0], stubs[1]
    how = {"temperature": 1.0, "seed": seed, "max_new_tokens": 8, "ignore_eos": True, **sampling}
    request = rollout.GenerateGroupRequest(prompt_token_ids=[5, 9, 30], num_completions=1, sampling=rollout.SamplingParams(**how))
    one = next(r.completion for r in rollout_grpc.RolloutServiceStub(server.channel).GenerateGroup(request, timeout=60)
               if r.HasField("completion"))
    return list(one.token_ids), list(one.behaviour_logprobs), [span.weight_version for span in one.version_spans]


# --- tokens in, tokens out


def test_generate_by_http_gives_the_ids_and_log_probs_of_our_own_protocol(shared, stubs):
    body = {"model": "small", "token_ids": [5, 9, 30], "request_id": "mine",
            "sampling_params": {"max_tokens": 8, "seed": 7, "logprobs": 1, "ignore_eos": True, "skip_special_tokens": False}}
    status, answer = post(shared.url, "/inference/v1/generate", body)
    assert status == 200, answer
    ids, logprobs, versions = drawn(shared, stubs)
    choice = answer["choices"][0]
    assert answer["request_id"] == "mine" and choice["token_ids"] == ids
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{i}" for i in ids]
    assert [np.float32(entry["logprob"]) for entry in choice["logprobs"]["content"]] == [np.float32(x) for x in logprobs]
    assert [span["weight_version"] for span in choice["weight_versions"]] == versions


@pytest.mark.parametrize("body, words", [
    ({"sampling_params": {}}, "token_ids is missing"),
    ({"token_ids": []}, "token_ids is missing"),
    ({"token_ids": ["a"]}, 'token_ids[0] is "a"'),
    ({"token_ids": [5], "sampling_params": {"temperature": "x"}}, "sampling_params.temperature"),
    ({"token_ids": [5], "sampling_params": {"repetition_penalty": 1.2}}, "sampling_params.repetition_penalty"),
    ({"token_ids": [5], "features": {"a": 1}}, "reads text only"),
])
def test_a_wrong_generate_is_told_why(shared, body, words):
    status, answer = post(shared.url, "/inference/v1/generate", body)
    assert status == 400 and words in answer["error"]["message"], answer


def test_inference_by_grpc_gives_the_same_whole_and_as_a_stream(shared, stubs, vllm):
    inference, inference_grpc = vllm[0], vllm[1]
    stub = inference_grpc.InferenceStub(shared.channel)
    request = inference.GenerateRequest(
        token_ids=inference.TokenIds(ids=[5, 9, 30]), temperature=1.0, sampling=inference.RandomSampling(seed=7),
        stopping=inference.StoppingCriteria(max_new_tokens=8, ignore_eos=True),
        response=inference.ResponseOptions(prompt_token_ids=True, prompt_logprobs=True, output_token_ids=True, output_logprobs=True,
                                           output_candidates=inference.CandidateTokens(top_n=2)))
    ids, logprobs, _ = drawn(shared, stubs)
    whole = stub.Generate(request, timeout=60)
    assert list(whole.outputs.token_ids) == ids
    assert [np.float32(x) for x in whole.outputs.logprobs] == [np.float32(x) for x in logprobs]
    assert list(whole.prompt_info.token_ids) == [5, 9, 30] and whole.prompt_info.ranks[0] == 0 and whole.prompt_info.ranks[1] >= 1
    assert whole.outputs.finish_info.finish_reason == inference.FinishInfo.LENGTH
    assert whole.outputs.finish_info.num_output_tokens == 8
    assert all(len(one.tokens) == 2 for one in whole.outputs.candidate_tokens)
    pieces = list(stub.GenerateStream(request, timeout=60))
    assert [i for piece in pieces for i in piece.outputs.token_ids] == ids
    assert "".join(piece.outputs.text for piece in pieces) == whole.outputs.text
    assert [piece.HasField("prompt_info") for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert pieces[-1].HasField("outputs") and pieces[-1].outputs.HasField("finish_info")


def test_several_sequences_stream_with_their_index(shared, vllm):
    inference, inference_grpc = vllm[0], vllm[1]
    request = inference.GenerateRequest(text="Name", temperature=1.0, sampling=inference.RandomSampling(num_sequences=3, seed=1),
                                        stopping=inference.StoppingCriteria(max_new_tokens=4, ignore_eos=True))
    counts = {}
    for piece in inference_grpc.InferenceStub(shared.channel).GenerateStream(request, timeout=60):
        counts[piece.outputs.index] = counts.get(piece.outputs.index, 0) + piece.outputs.num_tokens
    assert counts == {0: 4, 1: 4, 2: 4}
    with pytest.raises(grpc.RpcError, match="call GenerateStream"):
        inference_grpc.InferenceStub(shared.channel).Generate(request, timeout=60)


@pytest.mark.parametrize("change, words", [
    (dict(lora_name="nobody"), "lora_name"), (dict(model="gpt"), "does not exist"),
    (dict(decoding=dict(presence_penalty=1.0)), "presence_penalty"), (dict(decoding=dict(regex="a")), "structured_output"),
    (dict(media=[{}]), "media"), (dict(response=dict(output_candidates=dict(all=True))), "top_n"),
    (dict(token_ids=dict(ids=[10 ** 9])), "want ids below"), (dict(temperature=-1.0), "temperature"),
    (dict(sampling=dict(num_sequences=2 ** 32 - 1)), "num_sequences is 4294967295"),
])
def test_inference_that_is_not_done_here_is_refused_with_the_field(shared, vllm, change, words):
    inference, inference_grpc = vllm[0], vllm[1]
    request = inference.GenerateRequest(**{"token_ids": dict(ids=[5]), **change})
    with pytest.raises(grpc.RpcError, match=words):
        inference_grpc.InferenceStub(shared.channel).Generate(request, timeout=60)


# --- pauses


def test_a_pause_that_keeps_holds_a_stream_until_it_is_resumed(server, stubs, vllm):
    control, control_grpc = vllm[2], vllm[3]
    stub = control_grpc.ControlStub(server.channel)
    stub.PauseGeneration(control.PauseGenerationRequest(mode=control.PAUSE_MODE_KEEP), timeout=60)
    assert stub.IsPaused(control.IsPausedRequest(), timeout=60).paused and get(server.url, "/is_paused") == {"is_paused": True}
    found = []
    thread = threading.Thread(target=lambda: found.append(drawn(server, stubs)))
    thread.start()
    thread.join(timeout=0.5)
    assert thread.is_alive() and not found
    assert post(server.url, "/resume") == (200, {"status": "resumed"})
    thread.join(timeout=60)
    assert len(found[0][0]) == 8
    assert not stub.IsPaused(control.IsPausedRequest(), timeout=60).paused


def test_a_pause_that_aborts_ends_what_is_under_way(server, stubs, vllm):
    control, control_grpc = vllm[2], vllm[3]
    stub = control_grpc.ControlStub(server.channel)
    stub.PauseGeneration(control.PauseGenerationRequest(mode=control.PAUSE_MODE_KEEP), timeout=60)
    errors = []

    def ask():
        try:
            drawn(server, stubs)
        except grpc.RpcError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: "tandem_groups_queued 1" in urllib.request.urlopen(server.url + "/metrics").read().decode(), "the group never came")
    assert post(server.url, "/pause") == (200, {"status": "paused"})  # vLLM's default mode is abort
    thread.join(timeout=60)
    assert errors[0].code() == grpc.StatusCode.ABORTED and "paused with mode abort" in errors[0].details()
    post(server.url, "/resume")
    assert len(drawn(server, stubs)[0]) == 8


def test_a_pause_whose_client_has_gone_ends_with_its_lease(model, stubs):
    with Server(model, "--dtype", "fp32", "--set", "server.lease_seconds=1", http=True) as server:
        post(server.url, "/pause?mode=keep")
        assert get(server.url, "/is_paused") == {"is_paused": True}
        wait_until(lambda: get(server.url, "/is_paused") == {"is_paused": False}, "the pause outlives its lease", seconds=20)
        assert len(drawn(server, stubs)[0]) == 8


@pytest.mark.parametrize("mode, status, words", [("wait", 501, "use keep"), ("later", 400, "want abort or keep")])
def test_a_pause_of_another_kind_is_refused(shared, mode, status, words):
    code, answer = post(shared.url, f"/pause?mode={mode}")
    assert code == status and words in answer["error"]["message"]


# --- weights from a directory


def test_prime_rls_update_serves_the_weights_of_a_directory_as_the_next_version(server, model, other, stubs):
    """The calls of prime-rl's orchestrator: pause, update, resume."""
    before = drawn(server, stubs)
    assert post(server.url, "/pause?mode=keep&clear_cache=false")[0] == 200
    assert post(server.url, "/update_weights", {"weight_dir": str(other)})[0] == 200
    assert post(server.url, "/resume")[0] == 200
    assert get(server.url, "/weight_info") == {"weight_version": "1"}
    after = drawn(server, stubs)
    assert after[2] == [1] and after[:2] != before[:2]
    with Server(other, "--dtype", "fp32", "--numerics", "invariant") as wanted:
        assert drawn(wanted, stubs)[:2] == after[:2], "the bits of a server that loaded them"
    assert post(server.url, "/update_weights", {"weight_dir": str(model)})[0] == 200
    again = drawn(server, stubs)
    assert again[2] == [2] and again[:2] == before[:2]


def test_vllms_update_by_grpc_with_digests_and_a_version(server, other, stubs, vllm):
    control, control_grpc = vllm[2], vllm[3]
    stub = control_grpc.ControlStub(server.channel)
    stub.InitWeightTransferEngine(control.InitWeightTransferEngineRequest(init_info_json=b'{"backend": "directory"}'), timeout=60)
    stub.StartWeightUpdate(control.StartWeightUpdateRequest(), timeout=60)
    info = {"weight_dir": str(other), "digests": digests_of(other)}
    stub.UpdateWeights(control.UpdateWeightsRequest(update_info_json=json.dumps(info).encode()), timeout=60)
    assert stub.GetWeightVersion(control.GetWeightVersionRequest(), timeout=60).weight_version == "0", "not before it is finished"
    assert drawn(server, stubs)[2] == [0]
    stub.FinishWeightUpdate(control.FinishWeightUpdateRequest(weight_version="41"), timeout=60)
    assert stub.GetWeightVersion(control.GetWeightVersionRequest(), timeout=60).weight_version == "41"
    assert drawn(server, stubs)[2] == [41]


def test_weights_that_are_not_those_that_were_written_are_not_served(server, other, stubs):
    before = drawn(server, stubs)
    wrong = digests_of(other)
    name = sorted(wrong)[0]
    wrong[name] = "0" * 32
    status, answer = post(server.url, "/update_weights", {"weight_dir": str(other), "digests": wrong})
    assert status == 500 and name in answer["error"]["message"] and "not those that were written" in answer["error"]["message"]
    status, answer = post(server.url, "/update_weights", {"weight_dir": str(other / "nowhere")})
    assert status in (400, 404), answer
    assert get(server.url, "/weight_info") == {"weight_version": "0"} and drawn(server, stubs) == before
    assert post(server.url, "/update_weights", {"weight_dir": str(other)})[0] == 200, "a failed update leaves the server free"


@pytest.mark.parametrize("body, status, words", [
    ({}, 501, "no weight_dir"), ({"weight_dir": 3}, 400, "want a text"), ({"weight_dir": "/x", "digests": [1]}, 400, "digests"),
    ({"update_info": {"names": ["a"]}}, 501, "no weight_dir"), ({"update_info": {"weight_dir": "/x"}}, 409, "StartWeightUpdate"),
])
def test_an_update_that_is_wrong_is_told_why(server, body, status, words):
    code, answer = post(server.url, "/update_weights", body)
    assert code == status and words in answer["error"]["message"], answer


def test_versions_rise_and_are_numbers(server, other):
    for version, words in (("0", "above the live version 0"), ("later", "want a number"), ("-3", "want a number")):
        assert post(server.url, "/start_weight_update")[0] == 200
        assert post(server.url, "/update_weights", {"update_info": {"weight_dir": str(other)}})[0] == 200
        code, answer = post(server.url, "/finish_weight_update", {"weight_version": version})
        assert code == 400 and words in answer["error"]["message"]
    code, answer = post(server.url, "/finish_weight_update")
    assert code == 200 or "no weights were given" in answer["error"]["message"]


def test_a_server_that_a_run_owns_takes_neither_pauses_nor_weights(server, other, stubs):
    weights, weights_grpc = stubs[2], stubs[3]
    owner = weights_grpc.WeightServiceStub(server.channel)
    owner.InitTransfer(weights.InitTransferRequest(run_id="theirs", epoch=1), timeout=60)
    for path, body in (("/pause?mode=keep", None), ("/update_weights", {"weight_dir": str(other)}), ("/start_weight_update", None)):
        code, answer = post(server.url, path, body)
        assert code == 409 and "theirs" in answer["error"]["message"], (path, answer)
    owner.InitTransfer(weights.InitTransferRequest(run_id="theirs", epoch=1, release=True), timeout=60)
    assert post(server.url, "/update_weights", {"weight_dir": str(other)})[0] == 200


def test_what_the_server_says_of_itself_is_true_and_what_it_never_does_says_so(shared, vllm):
    control, control_grpc = vllm[2], vllm[3]
    stub = control_grpc.ControlStub(shared.channel)
    info = stub.GetServerInfo(control.GetServerInfoRequest(), timeout=60)
    assert info.max_model_len == 512 and info.rl_capabilities.weight_transfer_backend == "directory"
    model = stub.GetModelInfo(control.GetModelInfoRequest(), timeout=60)
    assert model.served_model_name == "small" and model.supports_token_ids_input and not model.supports_lora
    assert get(shared.url, "/get_world_size") == {"world_size": 1}
    for call, request in ((stub.Sleep, control.SleepRequest()), (stub.UpdateWeightVersion, control.UpdateWeightVersionRequest()),
                          (stub.Shutdown, control.ShutdownRequest()), (stub.Abort, control.AbortRequest())):
        with pytest.raises(grpc.RpcError) as error:
            call(request, timeout=60)
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED and ":" in error.value.details()
