"""eval, generate and score compute in the dtype of the weights by default, and warn if they round wider weights to bf16."""
import json
import os
import pathlib
import sys

import pytest

from forked_tandem import forked_tandem

sys.path.insert(0, str(pathlib.Path(os.environ["TANDEM_SOURCE"]) / "tests" / "parity"))
from make_models import make_model  # noqa: E402

NOTE = "rounded to the nearest bf16 value"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """dtype -> a directory with weights in this dtype. fp16 has no engine and is computed in fp32."""
    folders = {}
    for dtype in ("fp32", "bf16", "fp16"):
        folders[dtype] = tmp_path_factory.mktemp("models") / dtype
        make_model("llama", folders[dtype], dtype=dtype, vocab_size=354)
    return folders


def run(tool, model, folder, *arguments):
    """(standard output, standard error)"""
    lines = {"score": {"ids": [5, 6, 7, 8, 9, 10]}, "generate": {"ids": [5, 6, 7]}, "eval": {"prompt": "one", "answer": "1"}}
    data = folder / f"{tool}.jsonl"
    data.write_text(json.dumps(lines[tool]) + "\n", encoding="utf-8")
    options = {"score": ["--input", str(data)], "generate": ["--input", str(data), "--seed", "3"],
               "eval": ["--data", str(data), "--reward", "any_number"]}[tool]
    done = forked_tandem(tool, "--model", model, *options, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("tool", ["score", "generate", "eval"])
@pytest.mark.parametrize("weights, dtype", [("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp32")])
def test_without_a_dtype_a_tool_takes_that_of_the_weights(tool, weights, dtype, models, tmp_path):
    default, note = run(tool, models[weights], tmp_path)
    assert default == run(tool, models[weights], tmp_path, "--dtype", dtype)[0]
    assert NOTE not in note
    if tool != "eval":  # two dtypes may have the same means
        other = "bf16" if dtype == "fp32" else "fp32"
        assert default != run(tool, models[weights], tmp_path, "--dtype", other)[0]


@pytest.mark.parametrize("tool", ["score", "generate", "eval"])
def test_bf16_of_wider_weights_is_said_to_lose_what_a_short_run_learned(tool, models, tmp_path):
    assert NOTE in run(tool, models["fp32"], tmp_path, "--dtype", "bf16")[1]
    assert NOTE not in run(tool, models["bf16"], tmp_path, "--dtype", "bf16")[1]
