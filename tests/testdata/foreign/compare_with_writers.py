"""Runs the functions with which NeMo-RL, prime-rl and open-instruct write these files, and compares the fixtures' layout with theirs.

  git clone https://github.com/NVIDIA-NeMo/RL https://github.com/PrimeIntellect-ai/prime-rl ... into one directory, then
  .deps/venv/bin/python tests/testdata/foreign/compare_with_writers.py DIRECTORY

The packages themselves need GPUs and do not install here. So each function is taken from its source file, and what that file
imports is replaced by empty modules; what is written is theirs. Compared are names, their order, nesting and types.
"""
import ast
import collections
import json
import os
import pathlib
import sys
import tempfile
import types
import typing

import numpy
import torch

HERE = pathlib.Path(__file__).parent


def shape(value):
    """Names, nesting and types. Elements of a list have one shape: null beside numbers is a number."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, list):
        shapes = [shape(element) for element in value if element is not None]
        return [shapes[0] if shapes else None]
    return type(value).__name__


def fake(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def run_source(name, text):
    module = fake(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def prime_rl(checkouts, out):
    for name in ("prime_rl", "prime_rl.configs", "prime_rl.trainer", "prime_rl.trainer.rl"):
        fake(name)
    loss = type("DefaultLossConfig", (), {"dppo_mask_high": 0.2, "dppo_mask_low": 0.2})
    fake("prime_rl.configs.trainer", DefaultLossConfig=loss, TrainerConfig=object)
    fake("prime_rl.trainer.rl.loss", compute_importance_ratio_and_mismatch_kl=lambda t, i: (t - i, (t - i).exp(), (t - i) ** 2))
    writer = run_source("writer", (checkouts / "prime-rl/src/prime_rl/trainer/rl/token_export.py").read_text())
    exporter, numbers = writer.TokenExporter(out, 0), torch.rand(1, 4)
    exporter.export(2, 0, {"input_ids": torch.tensor([[1, 11, 12, 2]]), "position_ids": torch.arange(4)[None],
                           "loss_mask": torch.tensor([[False, False, True, True]]), "advantages": numbers,
                           "inference_logprobs": numbers, "env_names": ["gsm8k"] * 4},
                    {"logprobs": numbers, "entropy": numbers}, [4], loss())
    return out / "token_exports/step_2/rank_0.jsonl", "prime-rl/token_exports/step_2/rank_0.jsonl"


def open_instruct(checkouts, out):
    package = fake("open_instruct", logger_utils=types.SimpleNamespace(setup_logger=lambda name: types.SimpleNamespace(info=print)))
    package.data_types = types.SimpleNamespace(RequestInfo=object, GenerationResult=object)
    package.model_utils, package.utils = types.SimpleNamespace(Batch=object), types.SimpleNamespace()
    text = (checkouts / "open-instruct/open_instruct/rl_utils.py").read_text()
    writer = run_source("writer", text[:text.index("@dataclass\nclass Timer")])
    info = types.SimpleNamespace(num_calls=[0], timeouts=[0], tool_errors=[""], tool_outputs=[""], tool_runtimes=[0.0],
                                 tool_calleds=[False], tool_call_stats=[[]], rollout_states=[{}])
    batch = types.SimpleNamespace(queries=[[1, 11]], scores=[1.0], datasets=["gsm8k"], ground_truths=[[4]])
    result = types.SimpleNamespace(responses=[[12, 2]], finish_reasons=["stop"], request_info=info, logprobs=[[-0.25, -0.5]])
    writer._save_rollouts(str(out), "run", 3, batch, result, numpy.array([0.5]), 1, 0)
    return out / "run_rollouts_000000.jsonl", "open-instruct/grpo_1_rollouts_000000.jsonl"


def methods(path, class_name, names):
    """The source of methods of a class, without the class's imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return [ast.unparse(member) for member in node.body if isinstance(member, ast.FunctionDef) and member.name in names]
    raise SystemExit(f"{path}: no class {class_name}")


def nemo_rl(checkouts, out):
    batches = methods(checkouts / "RL/nemo_rl/distributed/batched_data_dict.py", "BatchedDataDict",
                      {"slice", "make_microbatch_iterator", "size"})
    body = "\n".join("    " + line for method in batches for line in method.split("\n"))
    log = methods(checkouts / "RL/nemo_rl/utils/logger.py", "Logger", {"log_batched_dict_as_jsonl"})[0]
    names = {"torch": torch, "np": numpy, "os": os, "json": json, "PackedTensor": type("PackedTensor", (), {}), **vars(typing)}
    names["UserDict"] = collections.UserDict
    exec(f"class BatchedDataDict(UserDict):\n{body}\n    def __class_getitem__(cls, key): return cls\n"
         f"SlicedDataDict = BatchedDataDict\n{log}", names)
    numbers = torch.rand(1, 4).tolist()
    names["log_batched_dict_as_jsonl"](types.SimpleNamespace(base_log_dir=str(out)), {
        "content": [["2+2?4"]], "rewards": [1.0], "input_lengths": [4], "token_ids": [[1, 11, 12, 2]],
        "token_loss_mask": [[0, 0, 1, 1]], "sample_loss_mask": [1.0], "advantages": numbers, "generation_logprobs": numbers,
        "prev_logprobs": numbers}, "train_data_step3.jsonl")
    return out / "train_data_step3.jsonl", "nemo-rl/train_data_step3.jsonl"


if __name__ == "__main__":
    for write in (nemo_rl, prime_rl, open_instruct):
        with tempfile.TemporaryDirectory() as directory:
            written, fixture = write(pathlib.Path(sys.argv[1]), pathlib.Path(directory))
            theirs, ours = (shape(json.loads(path.read_text().splitlines()[0])) for path in (written, HERE / fixture))
        differ = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        same_order = list(theirs) == list(ours)
        print(f"{fixture}: {'the same layout' if not differ and same_order else f'differs in {differ or list(theirs)}'}")
