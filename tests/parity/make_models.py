#!/usr/bin/env python3
"""Makes small random model directories in Hugging Face form with transformers, for parity tests.

    python make_models.py --kind llama --out DIR --seed 0 [--untied] [--shards] [--dtype bf16]

Kinds: qwen2 (q/k/v bias), qwen3 (q/k norm, head_dim different from hidden / heads), llama (llama3 rotary scaling), and those of
MORE_KINDS, one for each other family and rotary scaling. All have grouped queries. The weights are wide enough for peaked distributions, so that errors of a forward pass show in the log-probs.
The same arguments give the same weights.
"""
import argparse
import pathlib
import shutil

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

KINDS = ("qwen2", "qwen3", "llama")
MORE_KINDS = ("mistral", "gemma2", "gemma3", "phi3", "olmo2", "smollm3", "glm4", "qwen2-window", "qwen3-yarn", "llama-linear",
              "phi3-longrope")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMOLLM2 = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "smollm2-tokenizer"
SMOLLM2_VOCAB = 49152
INIT_STD = 0.12
VOCABULARY_STD = 3.5 * INIT_STD  # of embedding and head, for logits with a spread of about 3

SHAPE = dict(vocab_size=384, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
             bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=True)

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# Windows shorter than the sequences of the tests, and caps that bend scores and logits.
GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 24, "pad_token_id": 0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 256, "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 2.5],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]}

# kind -> (configuration class, fields)
MORE_CONFIGS = {
    "mistral": ("MistralConfig", {"head_dim": 24, "sliding_window": 40}),
    "gemma2": ("Gemma2Config", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}),
    "gemma3": ("Gemma3TextConfig", {**GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                                    "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "phi3": ("Phi3Config", {"sliding_window": 100}),
    "olmo2": ("Olmo2Config", {}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 32}),
    "glm4": ("Glm4Config", {"head_dim": 24}),
    "qwen2-window": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 30, "max_window_layers": 1}),
    "qwen3-yarn": ("Qwen3Config", {"head_dim": 24, "rope_parameters": dict(YARN)}),
    "llama-linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "phi3-longrope": ("Phi3Config", {"original_max_position_embeddings": 256, "rope_parameters": dict(LONGROPE)}),
}

TRAINING_TEXT = (
    "the quick brown fox jumps over the lazy dog, and what is 12 * 34? answer with just a number. "
    "user and assistant talk about the weather; system says: you are a helpful assistant.\n") * 4


def make_config(kind, **overrides):
    """The transformers configuration of `kind`. Overrides are fields of it."""
    shape = {**SHAPE, **overrides}
    if kind == "qwen2":
        return transformers.Qwen2Config(**shape)
    if kind == "qwen3":
        return transformers.Qwen3Config(**{"head_dim": 24, **shape})
    if kind == "llama":
        return transformers.LlamaConfig(**{"rope_parameters": dict(LLAMA3), **shape})
    if kind in MORE_KINDS:
        name, fields = MORE_CONFIGS[kind]
        return getattr(transformers, name)(**{**shape, **fields, **overrides})
    raise ValueError(f"kind {kind!r} is not one of {', '.join(KINDS + MORE_KINDS)}")


def randomise(model, seed):
    """Fills every parameter in the order of names from one generator: norms around 1, the others around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            std = VOCABULARY_STD if "embed_tokens" in name or "lm_head" in name else INIT_STD
            parameter.copy_(1 + 0.1 * noise if "norm" in name else std * noise)


def small_tokenizer(vocab_size):
    """A byte-level BPE of at most `vocab_size` tokens, ids 0..2 special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>",
        pad_token="<|im_end|>", unk_token="<|endoftext|>",
        chat_template=(SMOLLM2 / "chat_template.jinja").read_text(encoding="utf-8"))


def write_tokenizer(directory, vocab_size):
    if vocab_size < SMOLLM2_VOCAB:
        small_tokenizer(vocab_size).save_pretrained(directory)
        return
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                 "chat_template.jinja"):
        shutil.copyfile(SMOLLM2 / name, directory / name)


def make_model(kind, directory, seed=0, *, dtype="fp32", shards=False, **overrides):
    """Writes a model directory and returns the transformers model, in evaluation mode.

    `overrides` are fields of the configuration (vocab_size=49152 brings SmolLM2's tokenizer,
    tie_word_embeddings=False an lm_head).  `shards` writes several files and an index.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    model = transformers.AutoModelForCausalLM.from_config(make_config(kind, **overrides))
    model = model.float()
    randomise(model, seed)
    model = model.to(DTYPES[dtype]).eval()
    model.config.dtype = DTYPES[dtype]
    model.save_pretrained(directory, max_shard_size="100KB" if shards else "50GB")
    write_tokenizer(directory, model.config.vocab_size)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kind", choices=KINDS + MORE_KINDS, required=True)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untied", action="store_true", help="an lm_head of its own")
    parser.add_argument("--shards", action="store_true", help="several files and an index")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    parser.add_argument("--vocab-size", type=int, default=SHAPE["vocab_size"])
    args = parser.parse_args()
    make_model(args.kind, args.out, args.seed, dtype=args.dtype, shards=args.shards,
               vocab_size=args.vocab_size, tie_word_embeddings=not args.untied)


if __name__ == "__main__":
    main()
