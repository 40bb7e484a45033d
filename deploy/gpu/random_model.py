#!/usr/bin/env python3
"""Writes a model directory with the shape of a published model and random bf16 weights, for measurements of speed.

    random_model.py SHAPE DIRECTORY --tokenizer DIRECTORY       SHAPE: 0.5b, 1.5b or 7b (Qwen2.5)
"""
import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file

SHAPES = {
    "0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                 num_key_value_heads=2, tie_word_embeddings=True, vocab_size=151936),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                 num_key_value_heads=2, tie_word_embeddings=True, vocab_size=151936),
    "7b": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
               num_key_value_heads=4, tie_word_embeddings=False, vocab_size=152064),
    # For tests of this script.
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=True, vocab_size=151936),
}


def tensors(shape):
    """Name -> size, as Qwen2 names them."""
    hidden, mlp, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    kv = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    found = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not shape["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    for i in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, rows in {"q": hidden, "k": kv, "v": kv}.items():
            found[f"{layer}self_attn.{name}_proj.weight"] = (rows, hidden)
            found[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        found[f"{layer}self_attn.o_proj.weight"] = (hidden, hidden)
        found[f"{layer}mlp.gate_proj.weight"] = found[f"{layer}mlp.up_proj.weight"] = (mlp, hidden)
        found[f"{layer}mlp.down_proj.weight"] = (hidden, mlp)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}{norm}.weight"] = (hidden,)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    args.directory.mkdir(parents=True, exist_ok=True)
    config = dict(shape, architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu",
                  max_position_embeddings=32768, rms_norm_eps=1e-6, rope_theta=1000000.0, torch_dtype="bfloat16",
                  bos_token_id=151643, eos_token_id=151645, use_sliding_window=False)
    (args.directory / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, size in tensors(shape).items():
        if "norm" in name:
            weights[name] = torch.ones(size, dtype=torch.bfloat16)
        else:
            weights[name] = (torch.randn(size, generator=generator) * 0.02).to(torch.bfloat16)
    save_file(weights, args.directory / "model.safetensors", metadata={"format": "pt"})
    for file in args.tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, args.directory)


if __name__ == "__main__":
    main()
