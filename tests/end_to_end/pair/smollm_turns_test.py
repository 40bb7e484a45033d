"""Several turns with SmolLM2: what the server says of later turns, and what tokenising the turns again would have changed."""
import math
import os
import pathlib

import pytest
from transformers import AutoTokenizer

from rollout_client import Server, load_stubs

MODEL = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "models/smollm2-135m-instruct"
ASK = "Name a number between one and nine, and say why."
FEEDBACK = "No. Guess again!"
rollout, rollout_grpc, _, _ = load_stubs()


@pytest.fixture(scope="module")
def server():
    with Server(MODEL, "--dtype", "fp32", "--numerics", "invariant") as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


def render(tokenizer, *messages):
    roles = ["user", "assistant"]
    conversation = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    return tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=True, return_dict=False)


def play(server, request, given):
    """Asks for a group, answers every turn with the ids `given`, and returns its completions and turns."""
    stub = rollout_grpc.RolloutServiceStub(server.channel)
    completions, turns = [], []
    for response in stub.GenerateGroup(request, timeout=300):
        if response.HasField("completion"):
            completions.append(response.completion)
        elif response.HasField("turn"):
            turns.append(response.turn)
            stub.ContinueCompletion(rollout.ContinueCompletionRequest(
                run_id=request.run_id, group_id=request.group_id, index=response.turn.index, turn=response.turn.turn,
                token_ids=given), timeout=60)
    return sorted(completions, key=lambda one: one.index), turns


def drawn_of(completion):
    """[T] whether each token was sampled."""
    if not completion.segments:
        return [True] * len(completion.token_ids)
    return [not segment.given for segment in completion.segments for _ in range(segment.num_tokens)]


@pytest.fixture(scope="module")
def episode(server, tokenizer):
    """(prompt, given ids, completions, turns) of sixteen completions of two turns."""
    prompt = render(tokenizer, ASK)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = f"\n<|im_start|>user\n{FEEDBACK}<|im_end|>\n<|im_start|>assistant\n"
    given = tokenizer.encode("<|im_end|>" + text, add_special_tokens=False)
    assert given[0] == end
    request = rollout.GenerateGroupRequest(
        run_id="", group_id=1, prompt_token_ids=prompt, num_completions=16,
        sampling=rollout.SamplingParams(temperature=1, max_new_tokens=64, seed=7),
        turns=rollout.Turns(max_turns=2, max_completion_tokens=192))
    completions, turns = play(server, request, given[1:])
    assert len(turns) >= 8, "most first turns end by themselves"
    return prompt, given[1:], completions, turns


def score(server, prompt, ids):
    sequence = rollout.ScoreSequence(token_ids=[*prompt, *ids], num_prompt_tokens=len(prompt))
    stub = rollout_grpc.RolloutServiceStub(server.channel)
    answer = stub.Score(rollout.ScoreRequest(sequences=[sequence]), timeout=300)
    return list(answer.scores[0].logprobs)[len(prompt):]


def test_later_turns_have_the_log_probs_of_the_whole_sequence(server, episode):
    prompt, _, completions, _ = episode
    for completion in completions:
        scores = score(server, prompt, completion.token_ids)
        for t, drawn in enumerate(drawn_of(completion)):
            assert math.isnan(completion.behaviour_logprobs[t]) != drawn
            if drawn:
                assert completion.behaviour_logprobs[t] == scores[t], (completion.index, t)


def test_ids_are_the_prompt_the_turns_and_what_was_given(episode, tokenizer):
    prompt, given, completions, turns = episode
    for completion in completions:
        first = next((turn for turn in turns if turn.index == completion.index), None)
        if first is None:  # cut by length
            assert not completion.segments
            continue
        size = len(first.token_ids)
        assert list(completion.token_ids[:size]) == list(first.token_ids)
        assert list(completion.token_ids[size:size + len(given)]) == given
        rendered = render(tokenizer, ASK, tokenizer.decode(first.token_ids[:-1]), FEEDBACK)
        whole = [*prompt, *completion.token_ids[:size], *given]
        assert tokenizer.decode(whole) == tokenizer.decode(rendered)


def test_tokenising_the_turns_again_would_change_ids_and_log_probs(server, episode, tokenizer):
    """Decoding what was sampled and encoding it again, as several frameworks did between turns: some turns come back with
    other ids, which have other log-probs than those that were recorded."""
    prompt, _, completions, _ = episode
    changed, gaps = 0, []
    for completion in completions:
        first = completion.segments[0].num_tokens if completion.segments else len(completion.token_ids)
        ids = list(completion.token_ids[:first])
        again = tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)
        if again == ids:
            continue
        changed += 1
        gaps.append(abs(sum(score(server, prompt, again)) - sum(completion.behaviour_logprobs[:first])))
    print(f"{changed} of {len(completions)} turns changed; gap of the turn's log-prob in nats: {[round(gap, 2) for gap in gaps]}")
    assert changed > 0 and max(gaps) > 0.5
