"""The filtered distributions of the rollout server compared with the processors of transformers' generate, token by token: the
ids that remain, their probability mass, and the log-prob of the sampled id."""

import pytest
import torch
import transformers

from make_models import make_model

from rollout_client import Server, load_stubs

rollout, rollout_grpc, _, _ = load_stubs()

# Each filter alone, all together, and pairs that show their order: top-p of the distribution with temperature and of the ids
# that top-k retained, and min-p after both.
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.5},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.6, "top_p": 0.8},
    {"temperature": 1.8, "top_k": 15, "top_p": 0.7},
    {"temperature": 1.4, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.0, "top_p": 0.9, "min_new_tokens": 6},
]
PROMPT = [5, 17, 99, 203, 41]
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    made = make_model("llama", directory, seed=3, vocab_size=354)
    with Server(directory, "--dtype", "fp32") as server:
        yield made, server


def draw(server, group_id, **sampling):
    request = rollout.GenerateGroupRequest(
        group_id=group_id, prompt_token_ids=PROMPT, num_completions=4,
        sampling=rollout.SamplingParams(max_new_tokens=NEW_TOKENS, seed=group_id, return_support=True, **sampling))
    stub = rollout_grpc.RolloutServiceStub(server.channel)
    answers = list(stub.GenerateGroup(request, timeout=60))
    return [answer.completion for answer in answers if answer.HasField("completion")]


def processors(model, **sampling):
    """The list of processors that model.generate would apply to the logits of each token."""
    config = transformers.GenerationConfig(**{"do_sample": True, "top_k": 0, **sampling})
    config.eos_token_id = model.config.eos_token_id
    model._prepare_special_tokens(config, True, device="cpu")
    return model._get_logits_processor(config, input_ids_seq_length=len(PROMPT))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(f"{k}{v}" for k, v in s.items()))
def test_every_token_is_drawn_from_what_transformers_would_leave(model, settings):
    made, server = model
    transform = processors(made, **settings)
    filtered = any(name in settings for name in ("top_k", "top_p", "min_p"))
    num_tokens = num_left = 0
    for completion in draw(server, 1 + SETTINGS.index(settings), **settings):
        ids = PROMPT + list(completion.token_ids)
        with torch.inference_mode():
            logits = made(torch.tensor([ids])).logits[0].float()
        for t, drawn in enumerate(completion.token_ids):
            before = torch.tensor([ids[:len(PROMPT) + t]])
            row = logits[len(PROMPT) + t - 1][None].clone()
            left = transform(before, row.clone())[0]
            support = torch.isfinite(left).nonzero()[:, 0].tolist()
            assert drawn in support
            if filtered:
                assert list(completion.support[t].ids) == support
            want = left.log_softmax(-1)
            p = want[support].exp()
            assert completion.behaviour_logprobs[t] == pytest.approx(want[drawn].item(), abs=2e-4)
            assert completion.raw_logprobs[t] == pytest.approx(row[0].log_softmax(-1)[drawn].item(), abs=2e-4)
            assert completion.entropies[t] == pytest.approx(-(p * want[support]).sum().item(), abs=2e-4)
            assert completion.logprob_second_moments[t] == pytest.approx(
                (p * want[support] ** 2).sum().item(), rel=1e-3, abs=1e-4)
            num_tokens += 1
            num_left += len(support)
    assert num_tokens >= 4 * 6
    if filtered:
        assert num_left < 0.5 * num_tokens * 354, "the filters filter"


def test_a_repetition_penalty_is_refused(model):
    import grpc
    with pytest.raises(grpc.RpcError) as error:
        draw(model[1], 99, temperature=1, repetition_penalty=1.2)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "repetition_penalty" in error.value.details()
