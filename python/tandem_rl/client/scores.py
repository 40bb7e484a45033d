"""Scores: what the sampler would have recorded for given ids under the live weights (docs/rollouts.md, section Scores)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np

from .._proto import rollout_pb2 as pb
from .errors import data_loss, invalid
from .results import Float32Array
from .token_ids import Int32Array, TokenIds, as_ids, hash_of

PATHS = {"prefill": pb.SCORE_PATH_PREFILL, "decode": pb.SCORE_PATH_DECODE}


class ScoreOptions(TypedDict, total=False):
    """How ids are scored, by keyword; the defaults are those of score_request."""
    num_prompt_tokens: int | Sequence[int]  # of each sequence, or of all; these are not scored. 0: all but the first are
    temperature: float  # logits are divided by it
    top_k: int
    top_p: float
    min_p: float
    path: str  # "prefill", or "decode": one token at a time through the KV cache, as they were sampled
    alone: bool  # one sequence at a time; else they are batched
    as_served: bool  # injected faults included, as a server with a real bug would score
    adapter: str  # one of ServerInfo.adapters
    body_bits: int  # significand bits that rounding keeps, 2 to 24; 0: 24. Of the inputs of all linear layers but the head,
    head_bits: int  # of the inputs of the head and the logits,
    kv_bits: int  # of keys and values,
    rotary_bits: int  # of the angles


@dataclass(frozen=True, eq=False)
class SequenceScore:
    """Scores of one sequence. Element t is about token t given the tokens before it; elements that are not scored, those of the
    first token and of the prompt, are 0."""
    logprobs: Float32Array  # [T] after temperature and filters, renormalised; -inf where they remove the id
    raw_logprobs: Float32Array  # [T] log-softmax of the unmodified logits
    entropies: Float32Array  # [T] nats, after temperature and filters, as the next three
    logprob_second_moments: Float32Array  # [T] E[(log p)^2]
    squared_probs: Float32Array  # [T] sum of p^2
    kept_mass: Float32Array  # [T] share of the tempered distribution that top-k, top-p and min-p retain
    margins: Float32Array  # [T] the largest logit less the second largest
    ranks: Int32Array  # [T] number of ids with a larger logit than the token's


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one call, all of one version of the weights."""
    sequences: tuple[SequenceScore, ...]
    weight_version: int


def score_request(sequences: Sequence[TokenIds], *, run_id: str = "", num_prompt_tokens: int | Sequence[int] = 0,
                  temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, path: str = "prefill",
                  alone: bool = False, as_served: bool = False, adapter: str = "", body_bits: int = 0, head_bits: int = 0,
                  kv_bits: int = 0, rotary_bits: int = 0) -> pb.ScoreRequest:
    """The message. Raises InvalidRequest for what does not fit into its fields."""
    if path not in PATHS:
        raise invalid(f"path is {path!r}: want {' or '.join(PATHS)}")
    prompts = [num_prompt_tokens] * len(sequences) if isinstance(num_prompt_tokens, int) else list(num_prompt_tokens)
    if len(prompts) != len(sequences):
        raise invalid(f"num_prompt_tokens has {len(prompts)} numbers for {len(sequences)} sequences")
    rows = [as_ids(ids, f"sequences[{number}]") for number, ids in enumerate(sequences)]
    try:
        return pb.ScoreRequest(
            run_id=run_id, temperature=temperature, path=PATHS[path], top_k=top_k, top_p=top_p, min_p=min_p, alone=alone,
            as_served=as_served, adapter=adapter,
            precision=pb.SitePrecision(body_bits=body_bits, head_bits=head_bits, kv_bits=kv_bits, rotary_bits=rotary_bits),
            sequences=[pb.ScoreSequence(token_ids=ids.tolist(), token_hash=hash_of(ids), num_prompt_tokens=prompt)
                       for ids, prompt in zip(rows, prompts, strict=True)])
    except (TypeError, ValueError) as error:
        raise invalid(f"an argument does not fit into its field of proto/rollout.proto: {error}") from error


def scores_of(request: pb.ScoreRequest, response: pb.ScoreResponse) -> Scores:
    """The answer as arrays. Raises RolloutError with DATA_LOSS where it does not fit the request."""
    lengths = [len(sequence.token_ids) for sequence in request.sequences]
    found = []
    for wire in response.scores:
        arrays: dict[str, Any] = {
            field.name: np.array(getattr(wire, field.name), dtype=np.int32 if field.name == "ranks" else np.float32)
            for field in fields(SequenceScore)}
        found.append(SequenceScore(**arrays))
    for number, length in enumerate(lengths):
        if len(found) != len(lengths) or any(len(getattr(found[number], field.name)) != length for field in fields(SequenceScore)):
            raise data_loss(f"the scores of sequence {number} do not have its {length} tokens")
    return Scores(tuple(found), response.weight_version)
