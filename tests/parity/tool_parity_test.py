"""The tools of `tandem` compared with transformers: scores of both engines, greedy completions, and the directories that
`init` and `export` make."""
import json
import pathlib

import pytest
import torch
import transformers
from safetensors.torch import load_file

import make_models
from forked_tandem import forked_tandem

HERE = pathlib.Path(__file__).resolve().parent
KINDS = ("qwen2", "qwen3", "llama")
TOLERANCE = 2e-4


def tandem(*arguments, lines=None, code=0):
    """Runs a subcommand with `lines` as JSON lines, and parses its output."""
    text = None if lines is None else "".join(json.dumps(line) + "\n" for line in lines)
    done = forked_tandem(*arguments, text=text)
    assert done.returncode == code, done.stderr
    return done.stdout if lines is None else [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    """A small random model of each kind: its directory and the transformers model in fp32."""
    directory = tmp_path_factory.mktemp("models") / request.param
    make_models.make_model(request.param, directory, seed=7)
    return directory, load(directory)


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def random_sequences(vocabulary, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def log_probs(reference, ids, temperature=1.0):
    with torch.no_grad():
        logits = reference(torch.tensor([ids])).logits[0].float() / temperature
    wanted = torch.tensor(ids[1:])
    return torch.log_softmax(logits, -1)[:-1].gather(1, wanted[:, None])[:, 0]


def largest_difference(reference, sequences, answers, temperature=1.0):
    worst = 0.0
    for ids, answer in zip(sequences, answers, strict=True):
        assert answer["logprobs"][0] is None
        got = torch.tensor(answer["logprobs"][1:])
        worst = max(worst, (got - log_probs(reference, ids, temperature)).abs().max().item())
    return worst


@pytest.mark.parametrize("flags", [("--engine", "trainer"),
                                   ("--engine", "rollout"),
                                   ("--engine", "rollout", "--path", "prefill")],
                         ids=["trainer", "decode", "prefill"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_equal_transformers_in_fp32(model, flags, temperature):
    directory, reference = model
    sequences = random_sequences(reference.config.vocab_size, (2, 17, 64, 130), seed=1)
    answers = tandem("score", "--model", directory, "--dtype", "fp32", "--temperature", temperature,
                     *flags, lines=[{"ids": ids} for ids in sequences])
    assert largest_difference(reference, sequences, answers, temperature) <= TOLERANCE


@pytest.mark.parametrize("engine", ["trainer", "rollout"])
def test_bf16_scores_stay_near_fp32(model, engine):
    directory, reference = model
    sequences = random_sequences(reference.config.vocab_size, (48,), seed=2)
    answers = tandem("score", "--model", directory, "--dtype", "bf16", "--engine", engine,
                     lines=[{"ids": ids} for ids in sequences])
    difference = largest_difference(reference, sequences, answers)
    assert 1e-6 < difference < 0.5  # it is bf16 and has the weights of this model


def test_greedy_completions_equal_transformers_over_32_prompts(model):
    directory, reference = model
    prompts = random_sequences(reference.config.vocab_size, [5 + i for i in range(32)], seed=3)
    answers = tandem("generate", "--model", directory, "--dtype", "fp32", "--greedy",
                     "--max-new-tokens", 24, lines=[{"ids": ids} for ids in prompts])
    assert len(answers) == 32
    for ids, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            prompt = torch.tensor([ids])  # masked, because generate() otherwise hides ids that equal the padding
            want = reference.generate(prompt, attention_mask=torch.ones_like(prompt),
                                      do_sample=False, max_new_tokens=24,
                                      eos_token_id=reference.config.eos_token_id)
        completion = answer["completions"][0]
        assert completion["ids"] == want[0, len(ids):].tolist()
        ended = completion["ids"][-1] == reference.config.eos_token_id
        assert completion["finish_reason"] == ("stop" if ended else "length")


def test_raw_logprobs_of_completions_are_those_of_score(model):
    directory, reference = model
    prompt = random_sequences(reference.config.vocab_size, (9,), seed=4)[0]
    answer = tandem("generate", "--model", directory, "--dtype", "fp32", "--temperature", 0.8,
                    "-n", 4, "--max-new-tokens", 12, "--seed", 5, lines=[{"ids": prompt}])[0]
    assert len(answer["completions"]) == 4
    for completion in answer["completions"]:
        ids = prompt + completion["ids"]
        for name, temperature in (("raw_logprobs", 1.0), ("behaviour_logprobs", 0.8)):
            want = log_probs(reference, ids, temperature)[len(prompt) - 1:]
            assert (torch.tensor(completion[name]) - want).abs().max().item() <= TOLERANCE


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_exported_directory_loads_in_transformers_and_scores_the_same(model, dtype, tmp_path):
    directory, _ = model
    tandem("export", directory, "--out", tmp_path / "out", "--dtype", dtype)
    exported = load(tmp_path / "out")
    sequences = random_sequences(exported.config.vocab_size, (40,), seed=6)
    answers = tandem("score", "--model", tmp_path / "out", "--dtype", "fp32", "--engine", "trainer",
                     lines=[{"ids": ids} for ids in sequences])
    assert largest_difference(exported, sequences, answers) <= TOLERANCE
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("the lazy dog")["input_ids"]


def test_an_export_keeps_every_bit_and_in_bf16_the_updates_on_average(model, tmp_path):
    source = load_file(model[0] / "model.safetensors")
    tandem("export", model[0], "--out", tmp_path / "whole")
    tandem("export", model[0], "--out", tmp_path / "half", "--dtype", "bf16")
    tandem("export", tmp_path / "half", "--out", tmp_path / "again", "--dtype", "bf16")
    whole, half, again = (load_file(tmp_path / name / "model.safetensors")
                          for name in ("whole", "half", "again"))
    errors, ulps = [], []
    for name, exact in source.items():
        assert torch.equal(whole[name], exact) and torch.equal(again[name], half[name])
        exponent = torch.frexp(exact).exponent - 8
        ulps.append(torch.ldexp(torch.ones_like(exact), exponent).flatten())
        errors.append((half[name].float() - exact).flatten())
    error, ulp = torch.cat(errors), torch.cat(ulps)
    assert (error.abs() < ulp).all(), "one of the two neighbours"
    assert (error.abs() > ulp / 2).float().mean() > 0.1, "to nearest would leave none"
    # In ulps, the error of dithered rounding has variance 1/6 over elements with uniform remainders.
    assert (error / ulp).mean().abs().item() < 5 * (1 / 6 / len(error)) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_model_loads_in_transformers_and_scores_the_same(kind, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("what is 12 + 34? answer with just the number.\nthe sum is 46.\n" * 50)
    out = tmp_path / "fresh"
    tandem("init", "--out", out, "--text", text, "--model-type", kind, "--hidden", 64,
           "--layers", 2, "--heads", 4, "--kv-heads", 2, "--intermediate", 96,
           "--vocab", 300, "--seed", 3)
    reference = load(out)
    sequences = random_sequences(reference.config.vocab_size, (3, 50), seed=8)
    answers = tandem("score", "--model", out, "--dtype", "fp32", "--engine", "trainer",
                     lines=[{"ids": ids} for ids in sequences])
    assert largest_difference(reference, sequences, answers) <= TOLERANCE

    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    messages = [{"role": "user", "content": "what is 12 + 34?"}]
    want = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    got = tandem("tokenize", "--model", out,
                 lines=[{"messages": messages, "add_generation_prompt": True}])[0]
    assert got["text"] == want
    assert got["ids"] == tokenizer(want, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["smollm2", "qwen2"])
def test_golden_tokenizer_cases_are_identical_through_the_binary(name):
    data = HERE.parent / "testdata"
    cases = [json.loads(line) for line in (data / "golden/tokenizer_cases.jsonl").open()]
    cases = [case for case in cases if case["tokenizer"] == name]
    directory = data / f"{name}-tokenizer"
    encoded = tandem("tokenize", "--model", directory, lines=[{"text": c["text"]} for c in cases])
    assert [answer["ids"] for answer in encoded] == [case["ids"] for case in cases]
    decoded = tandem("tokenize", "--model", directory, lines=[{"ids": c["ids"]} for c in cases])
    assert [answer["text"] for answer in decoded] == [c.get("decoded", c["text"]) for c in cases]


def test_golden_chat_cases_are_identical_through_the_binary():
    data = HERE.parent / "testdata"
    cases = [json.loads(line) for line in (data / "golden/chat_cases.jsonl").open()]
    for name in sorted({case["tokenizer"] for case in cases}):
        mine = [case for case in cases if case["tokenizer"] == name]
        answers = tandem("tokenize", "--model", data / f"{name}-tokenizer", "--chat",
                         lines=[{k: case[k] for k in ("messages", "add_generation_prompt")}
                                for case in mine])
        assert answers == [{"text": case["text"], "ids": case["ids"]} for case in mine]
