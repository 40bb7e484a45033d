"""The TRL hook on a real GRPOTrainer that trains a model of random weights for a step: both sides, of the right tokens."""
import datasets
import numpy as np
import pytest
import torch
import transformers
import trl

import tandem_rl
from conftest import ROOT
from tandem_rl.export.trl_callback import record

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(ROOT / "tests/testdata/smollm2-tokenizer")


def small_model(tokenizer):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def drawn_by_generate(prompts, trainer):
    """What a rollout_func gives: ids and the log-probs of the distribution that was drawn from."""
    out = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    for number, prompt in enumerate(prompts):
        ids = trainer.processing_class(prompt, return_tensors="pt").input_ids
        done = trainer.model.generate(ids, max_new_tokens=4 + number % 3, do_sample=True, temperature=TEMPERATURE, top_k=0,
                                      pad_token_id=2, eos_token_id=None, output_scores=True, return_dict_in_generate=True)
        completion = done.sequences[0, ids.shape[1]:].tolist()
        logprobs = [float(torch.log_softmax(scores[0].float(), -1)[token]) for scores, token in zip(done.scores, completion)]
        for name, values in zip(out, (ids[0].tolist(), completion, logprobs)):
            out[name].append(values)
    return out


def trainer_of(tokenizer, folder, rollout_func=None, **options):
    config = trl.GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=4, num_generations=2, max_completion_length=8, max_steps=1,
        temperature=TEMPERATURE, beta=0.0, learning_rate=1e-6, report_to=[], use_cpu=True, bf16=False, save_strategy="no",
        logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, **options)
    data = datasets.Dataset.from_dict({"prompt": ["One and one", "The sky", "Why", "A long prompt of many words"]})
    return trl.GRPOTrainer(small_model(tokenizer), args=config, train_dataset=data, processing_class=tokenizer,
                           reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
                           rollout_func=rollout_func)


def test_both_sides_of_a_step_are_written(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer = trainer_of(tokenizer, tmp_path, drawn_by_generate, num_iterations=2)
    record(trainer, str(tmp_path / "records.jsonl"))
    trainer.train()
    records = tandem_rl.read_records(tmp_path / "records.jsonl")
    assert len(records) == 4 and {facts.step for facts in records.rows} == {0}
    assert records.header["proximal"] == {"policy": "proximal", "engine": "transformers", "temperature": TEMPERATURE}
    counts = [int(records.drawn[records.slice_of(row)].sum()) for row in range(4)]
    assert counts == [4, 5, 6, 4]
    for row in range(4):
        tokens = records.slice_of(row)
        prompt = tokenizer.decode(records.token_ids[tokens][~records.drawn[tokens]])
        assert prompt in ("One and one", "The sky", "Why", "A long prompt of many words")
    delta = records.delta[records.drawn]
    assert np.isfinite(delta).all() and np.abs(delta).max() < 1e-4
    assert records.columns["behaviour_logprobs"][records.drawn].std() > 1e-3
    assert np.isnan(records.columns["proximal_logprobs"][~records.drawn]).all()
    assert all(facts.advantage is not None for facts in records.rows)


def test_log_probs_that_trl_does_not_compute_are_asked_for(tokenizer, tmp_path):
    trainer = trainer_of(tokenizer, tmp_path)
    record(trainer, str(tmp_path / "records.jsonl"))
    with pytest.raises(ValueError, match="set use_vllm=True, or num_iterations above 1"):
        trainer.train()


def test_the_trainer_s_side_alone_is_written(tokenizer, tmp_path):
    trainer = trainer_of(tokenizer, tmp_path, num_iterations=2)
    record(trainer, str(tmp_path / "records.jsonl"))
    trainer.train()
    records = tandem_rl.read_records(tmp_path / "records.jsonl")
    assert set(records.columns) == {"proximal_logprobs"} and records.num_given["proximal_logprobs"] == records.drawn.sum()
