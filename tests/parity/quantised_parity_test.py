"""Quantised weights and KV compared with programs of others: weights that numpy quantises and dequantises, in transformers, within
1e-5 (weight-only); and both sides with numerics exact, bit for bit, in every format.
"""
import copy

import numpy as np
import pytest
import torch

from engine_parity_test import predictions, random_ids, tandem
from make_models import make_model

TOLERANCE = 2e-4  # of the engine in fp32 beside transformers, as in engine_parity_test.py
LONGEST = 60


def e4m3(values):
    return torch.tensor(values).to(torch.float8_e4m3fn).float().numpy()


def scaled(rows, top, rounded):
    scales = np.abs(rows).max(axis=-1, keepdims=True).astype(np.float32) / np.float32(top)
    scales[scales == 0] = 1
    return rounded(rows / scales) * scales


def int8(rows):
    return scaled(rows, 127, np.rint)


def fp8(rows):
    return scaled(rows, 448, e4m3)


def int4(rows, group):
    out = np.empty_like(rows)
    for first in range(0, rows.shape[1], group):
        part = rows[:, first:first + group]
        scale = np.abs(part).max(axis=-1, keepdims=True).astype(np.float32) / np.float32(7)
        scale = torch.tensor(scale).bfloat16().float().numpy()
        scale[scale == 0] = 1
        out[:, first:first + group] = np.clip(np.rint(part / scale), -7, 7) * scale
    return out


FORMATS = {"int8": (int8, int8), "fp8_e4m3": (fp8, fp8), "int4_group": (lambda rows: int4(rows, 32), int8)}


def dequantised(model, layers, head):
    """The model with every matrix of its layers, its head and its embedding replaced by what quantising leaves of it."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if parameter.dim() != 2:
                continue
            quantise = layers if ".layers." in name else head
            if quantise is not None:
                parameter.copy_(torch.tensor(quantise(parameter.numpy().astype(np.float32))))
    return other


@pytest.fixture(scope="module", params=["llama", "qwen3", "phi3"])
def made(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / request.param
    return make_model(request.param, directory, seed=5), directory


def assert_scores(model, directory, *flags):
    sequences = random_ids(4, LONGEST, model.config.vocab_size)
    for path in ("decode", "prefill"):
        answers = tandem("score", "--model", directory, "--dtype", "fp32", "--path", path, *flags,
                         lines=[{"ids": ids} for ids in sequences])
        for ids, answer in zip(sequences, answers, strict=True):
            assert answer["logprobs"][1:] == pytest.approx(predictions(model, ids)[0], rel=0, abs=TOLERANCE), (path, flags)


@pytest.mark.parametrize("scheme", FORMATS)
def test_weight_only_scores_are_those_of_dequantised_weights_in_transformers(made, scheme):
    model, directory = made
    layers, head = FORMATS[scheme]
    flags = ["--weight-format", scheme, "--activations", "dtype" if scheme != "fp8_e4m3" else "auto"]
    assert_scores(dequantised(model, layers, head), directory, *flags)
    assert_scores(dequantised(model, layers, None), directory, *flags, "--no-quantise-head")


def test_exceptions_by_layer_leave_their_matrices_as_they_are(made):
    model, directory = made
    whole = dequantised(model, int8, int8)
    mixed = copy.deepcopy(whole)
    with torch.no_grad():
        for name, parameter in mixed.named_parameters():
            if ".layers.0." in name and "down_proj" in name:
                parameter.copy_(model.get_parameter(name))
    flags = ["--weight-format", "int8", "--activations", "dtype"]
    assert_scores(mixed, directory, *flags, "--weights-by-layer", "0.down_proj=dtype")
    ids = random_ids(1, LONGEST, model.config.vocab_size)[0]
    with pytest.raises(AssertionError):  # the exception makes a difference that the test sees
        assert predictions(mixed, ids)[0] == pytest.approx(predictions(whole, ids)[0], rel=0, abs=TOLERANCE)


@pytest.fixture(scope="module")
def plain(made):
    """Lines to score, and what the engine says of them in exact bf16 without a quantised format."""
    model, directory = made
    lines = [{"ids": ids} for ids in random_ids(5, LONGEST, model.config.vocab_size)]
    return lines, tandem("score", "--model", directory, "--dtype", "bf16", "--numerics", "exact", lines=lines)


@pytest.mark.parametrize("flags", [
    ["--weight-format", "int8"], ["--weight-format", "int8", "--activations", "dtype"], ["--weight-format", "fp8_e4m3"],
    ["--weight-format", "int4_group"], ["--weight-format", "int4_group", "--activations", "int8", "--weight-group", "64"],
    ["--weight-format", "int8", "--no-quantise-head"], ["--kv", "int8"], ["--kv", "fp8_e4m3"],
    ["--weight-format", "int8", "--kv", "int8", "--weights-by-layer", "0.down_proj=dtype,head=fp8_e4m3"]], ids=" ".join)
def test_both_sides_give_the_same_bits_in_exact_mode(made, plain, flags):
    _, directory = made
    lines, unquantised = plain
    for dtype in ("fp32", "bf16"):
        common = ["--model", directory, "--dtype", dtype, "--numerics", "exact", *flags]
        decoded = tandem("score", *common, "--engine", "rollout", lines=lines)
        prefilled = tandem("score", *common, "--engine", "rollout", "--path", "prefill", lines=lines)
        scored = tandem("score", *common, "--engine", "trainer", lines=lines)
        assert decoded == prefilled
        assert [a["logprobs"] for a in decoded] == [a["logprobs"] for a in scored], dtype
    assert decoded != unquantised


@pytest.mark.parametrize("scheme", FORMATS)
def test_a_forward_that_fakes_quantised_weights_is_nearer_to_the_server_that_has_them(made, scheme):
    model, directory = made
    lines = [{"ids": ids} for ids in random_ids(5, LONGEST, model.config.vocab_size)]
    common = ["--model", directory, "--dtype", "bf16"]

    def scores(*flags):
        return np.concatenate([a["logprobs"][1:] for a in tandem("score", *common, *flags, lines=lines)])

    # Inputs in int8 are another matter: both sides round them, but from values that differ already.
    activations = ["--activations", "dtype"] if scheme == "int8" else []
    served = scores("--weight-format", scheme, *activations)
    faked, plain = scores("--engine", "trainer", "--weight-format", scheme), scores("--engine", "trainer")
    assert np.abs(served - faked).mean() < 0.7 * np.abs(served - plain).mean()
