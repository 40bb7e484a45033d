"""Draws from logits in numpy, for engines whose own samplers do not say what distribution they drew from. Used by
llama_cpp.py."""
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .requests import SampleRequest

Floats = npt.NDArray[np.float64]


def log_softmax(logits: npt.NDArray[Any]) -> Floats:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def entropy(logprobs: Floats) -> Floats:
    kept = np.where(np.isfinite(logprobs), logprobs, 0.0)
    result: Floats = -(np.exp(logprobs) * kept).sum(axis=-1)
    return result


def drawn_from(logits: npt.NDArray[Any], request: SampleRequest) -> Floats:
    """Log-probs [V] after temperature, top-k and then top-p, renormalised; -inf for what they remove."""
    scaled = logits.astype(np.float64) / request.temperature
    if 0 < request.top_k < scaled.size:
        scaled[scaled < np.partition(scaled, -request.top_k)[-request.top_k]] = -np.inf
    if request.top_p < 1:
        order = np.argsort(-scaled, kind="stable")
        probs = np.exp(log_softmax(scaled))[order]
        before = np.concatenate(([0.0], np.cumsum(probs)[:-1]))
        scaled[order[before >= request.top_p]] = -np.inf
    return log_softmax(scaled)


def draw(logprobs: Floats, rng: np.random.Generator) -> int:
    """The first token whose cumulative probability is above a uniform number."""
    cumulative = np.cumsum(np.exp(logprobs))
    at = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    return min(at, int(np.flatnonzero(np.isfinite(logprobs))[-1]))
