"""Writes a model directory of the Llama family as a GGUF file for llama.cpp, with the gguf package that llama.cpp's own
converter uses, and rounds it to other types with llama.cpp's own quantiser. Used by llama_cpp.py; also a program:
`python -m tandem_rl.engines.gguf_file --model DIR --type q8_0 --out FILE`."""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any

# GGUF type -> the name of llama.cpp's ftype. The first three are written directly, the others by the quantiser.
TYPES = {"f32": "LLAMA_FTYPE_ALL_F32", "f16": "LLAMA_FTYPE_MOSTLY_F16", "bf16": "LLAMA_FTYPE_MOSTLY_BF16",
         "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "q4_K": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}

# Hugging Face name inside a layer -> GGUF name inside a block.
_LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
          "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
          "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}


def _bf16_as_float32(raw: Any, shape: list[int]) -> Any:
    import numpy as np
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)


def tensors_of(directory: str) -> dict[str, Any]:
    """Every tensor of the safetensors files as float32, which holds bf16 and f16 exactly."""
    import numpy as np
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        data = np.memmap(path, dtype=np.uint8, mode="r")
        size = int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8:8 + size].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            raw = np.array(data[begin:end])
            if entry["dtype"] == "BF16":
                tensors[name] = _bf16_as_float32(raw, entry["shape"])
            elif entry["dtype"] in ("F32", "F16"):
                kind = np.float32 if entry["dtype"] == "F32" else np.float16
                tensors[name] = raw.view(kind).reshape(entry["shape"]).astype(np.float32)
            else:
                raise ValueError(f"{path}: {name} is of {entry['dtype']}, expected F32, F16 or BF16")
    if not tensors:
        raise ValueError(f"{directory}: there is no .safetensors file in it")
    return tensors


def gguf_name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parts = name.split(".")
    if parts[:2] == ["model", "layers"] and parts[-1] in ("weight", "bias"):
        inside = ".".join(parts[3:-1])
        if inside in _LAYER:
            return f"blk.{parts[2]}.{_LAYER[inside]}.{parts[-1]}"
    raise ValueError(f"{name}: no tensor of the Llama family has this name")


def interleaved(weight: Any, num_heads: int) -> Any:
    """Rows of a query or key projection in the order of llama.cpp, which rotates neighbours in place of halves."""
    shape = weight.shape
    return weight.reshape(num_heads, 2, shape[0] // num_heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _add_tokenizer(writer: Any, directory: str, vocab_size: int) -> None:
    import gguf
    with open(os.path.join(directory, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [int(gguf.TokenType.UNUSED)] * vocab_size
    for text, token in tokenizer["model"]["vocab"].items():
        tokens[token], types[token] = text, int(gguf.TokenType.NORMAL)
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = int(gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]])


def write_gguf(directory: str, out: str, kind: str) -> None:
    """f32, f16 or bf16. Norms stay float32, as llama.cpp wants them."""
    import gguf
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    if config.get("model_type") != "llama":
        raise ValueError(f"{directory}: model_type {config.get('model_type')} is not converted here, only llama; convert it with "
                         "llama.cpp's convert_hf_to_gguf.py and name the file with --option gguf=FILE")
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    rope = config.get("rope_parameters") or config
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(pathlib.Path(directory).name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(int(getattr(gguf.LlamaFileType, TYPES[kind].removeprefix("LLAMA_FTYPE_"))))
    _add_tokenizer(writer, directory, config["vocab_size"])
    for name, key in (("bos", "bos_token_id"), ("eos", "eos_token_id")):
        value = config.get(key)
        value = value[0] if isinstance(value, list) else value
        if value is not None:
            getattr(writer, f"add_{name}_token_id")(value)
    of_kind = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
               "bf16": gguf.GGMLQuantizationType.BF16}[kind]
    for name, tensor in tensors_of(directory).items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        target = gguf_name(name)
        if ".attn_q." in target or ".attn_k." in target:
            tensor = interleaved(tensor, heads if ".attn_q." in target else kv_heads)
        if tensor.ndim == 1:
            writer.add_tensor(target, tensor)
        else:
            writer.add_tensor(target, gguf.quants.quantize(tensor, of_kind), raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_gguf(directory: str, out: str, kind: str) -> None:
    """Writes `out`, whole or not at all. Raises ValueError for a model or a type that it does not know."""
    if kind not in TYPES:
        raise ValueError(f"type {kind}: expected one of {', '.join(TYPES)}")
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    partial = f"{out}.{os.getpid()}.partial"
    try:
        if kind in ("f32", "f16", "bf16"):
            write_gguf(directory, partial, kind)
        else:
            exact = f"{partial}.f32"
            try:
                write_gguf(directory, exact, "f32")
                _quantise(exact, partial, kind)
            finally:
                pathlib.Path(exact).unlink(missing_ok=True)
        os.replace(partial, out)
    finally:
        pathlib.Path(partial).unlink(missing_ok=True)


def _quantise(source: str, out: str, kind: str) -> None:
    import llama_cpp
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, TYPES[kind])
    options.nthread = os.cpu_count() or 1
    if llama_cpp.llama_model_quantize(source.encode(), out.encode(), options) != 0:
        raise ValueError(f"{source}: llama.cpp could not make a file of type {kind}")


def main() -> int:
    parser = argparse.ArgumentParser(description="a model directory as a GGUF file")
    parser.add_argument("--model", required=True)
    parser.add_argument("--type", required=True, choices=list(TYPES))
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    make_gguf(given.model, given.out, given.type)
    return 0


if __name__ == "__main__":
    sys.exit(main())
