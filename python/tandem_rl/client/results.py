"""What a group brings: completions as numpy arrays. Letters of shapes: T tokens of a completion, K likeliest ids of a token."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .._proto import rollout_pb2 as pb
from .token_ids import Int32Array

Float32Array: TypeAlias = npt.NDArray[np.float32]
FINISH_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length", pb.FINISH_REASON_STOP_STRING: "stop_string",
                  pb.FINISH_REASON_STOPPED_EARLY: "stopped_early"}


@dataclass(frozen=True)
class VersionSpan:
    """Consecutive sampled tokens of the same weights."""
    weight_version: int
    num_tokens: int


@dataclass(frozen=True)
class Segment:
    """Tokens of a completion of several turns that were sampled in one turn, or given between two."""
    given: bool
    num_tokens: int
    text: str  # of a sampled turn, without its stop token


@dataclass(frozen=True, eq=False)
class TopLogprobs:
    """The likeliest ids of each token, likeliest first. Rows of given tokens are -1 and NaN."""
    ids: Int32Array  # [T, K]
    logprobs: Float32Array  # [T, K] behaviour


@dataclass(frozen=True, eq=False)
class Completion:
    """One completion. Element t of every array is about token t given the tokens before it. Log-probs are natural logarithms,
    float32. On tokens that were given between two turns the numbers are NaN or 0."""
    index: int
    token_ids: Int32Array  # [T], stop token included
    behaviour_logprobs: Float32Array  # [T] after temperature and filters, renormalised: what was really drawn from
    raw_logprobs: Float32Array  # [T] log-softmax of the unmodified logits
    entropies: Float32Array  # [T] nats, of the sampling distribution
    logprob_second_moments: Float32Array  # [T] E[(log p)^2] of the sampling distribution
    kept_mass: Float32Array  # [T] share of the tempered distribution that top-k, top-p and min-p retain
    version_spans: tuple[VersionSpan, ...]  # lengths add up to the number of sampled tokens; versions never decrease
    finish_reason: str  # "stop", "length" (truncated), "stop_string" or "stopped_early"
    text: str  # without the last stop token, cut at a stop string
    decode_batch_sizes: Int32Array  # [T] sequences in the decode step that sampled the token
    prefix_cached: npt.NDArray[np.bool_]  # [T] the prompt's KV came from the prefix cache
    support: tuple[Int32Array, ...] | None  # [T] with return_support and a filter on: rising ids; empty: all ids
    top_logprobs: TopLogprobs | None  # with top_logprobs
    segments: tuple[Segment, ...]  # lengths add up to T; empty: all tokens were sampled, in one turn
    seed: int  # that was used
    greedy: bool  # temperature 0: behaviour_logprobs equal raw_logprobs
    decode_ms: float  # from the first token to the last
    longest_gap_ms: float  # longest time between two tokens
    wait_ms: float  # between turns

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """[T], False on tokens that were given between two turns."""
        if not self.segments:
            return np.ones(len(self.token_ids), dtype=np.bool_)
        return np.repeat([not segment.given for segment in self.segments], [segment.num_tokens for segment in self.segments])

    @property
    def weight_versions(self) -> npt.NDArray[np.int64]:
        """[T] int64, -1 on given tokens."""
        versions = np.full(len(self.token_ids), -1, dtype=np.int64)
        versions[self.sampled] = np.repeat([span.weight_version for span in self.version_spans],
                                           [span.num_tokens for span in self.version_spans])
        return versions


@dataclass(frozen=True, eq=False)
class Turn:
    """The end of a turn of a completion that waits for the next ids."""
    index: int  # of the completion
    turn: int  # from 1
    token_ids: Int32Array  # of this turn, stop token included
    finish_reason: str  # "stop" or "stop_string"
    text: str  # of this turn, without its stop token
    num_tokens_left: int  # how many ids may be given, so that one more can be sampled


@dataclass(frozen=True)
class GroupSummary:
    """The end of a group."""
    num_completions: int  # a greedy baseline counts
    num_prompt_tokens_cached: int  # that the prefix cache saved
    queue_ms: float  # from arrival to admission
    prefill_ms: float  # from admission to the first token
    decode_ms: float  # from the first token to the last
    incomplete: bool  # completions were cut short by abort_group with finish_early


@dataclass(frozen=True, eq=False)
class Group:
    """The completions of one prompt."""
    group_id: int
    completions: tuple[Completion, ...]  # in the order of their indices
    greedy_baseline: Completion | None  # with greedy_baseline
    summary: GroupSummary


def _floats(values: Iterable[float]) -> Float32Array:
    return np.array(values, dtype=np.float32)


def _top_logprobs(rows: Any) -> TopLogprobs | None:
    if not rows:
        return None
    shape = len(rows), max(len(row.ids) for row in rows)
    ids, logprobs = np.full(shape, -1, dtype=np.int32), np.full(shape, np.nan, dtype=np.float32)
    for t, row in enumerate(rows):
        ids[t, :len(row.ids)], logprobs[t, :len(row.ids)] = row.ids, row.logprobs
    return TopLogprobs(ids, logprobs)


def completion_of(wire: pb.Completion) -> Completion:
    """The message as arrays, unchecked."""
    return Completion(
        index=wire.index, token_ids=np.array(wire.token_ids, dtype=np.int32), behaviour_logprobs=_floats(wire.behaviour_logprobs),
        raw_logprobs=_floats(wire.raw_logprobs), entropies=_floats(wire.entropies),
        logprob_second_moments=_floats(wire.logprob_second_moments), kept_mass=_floats(wire.kept_mass),
        version_spans=tuple(VersionSpan(span.weight_version, span.num_tokens) for span in wire.version_spans),
        finish_reason=FINISH_REASONS.get(wire.finish_reason, ""), text=wire.text,
        decode_batch_sizes=np.array(wire.decode_batch_sizes, dtype=np.int32),
        prefix_cached=np.array(wire.prefix_cached, dtype=np.bool_),
        support=tuple(np.array(one.ids, dtype=np.int32) for one in wire.support) or None,
        top_logprobs=_top_logprobs(wire.top_logprobs),
        segments=tuple(Segment(one.given, one.num_tokens, one.text) for one in wire.segments), seed=wire.seed, greedy=wire.greedy,
        decode_ms=wire.decode_ms, longest_gap_ms=wire.longest_gap_ms, wait_ms=wire.wait_ms)


def turn_of(wire: pb.Turn) -> Turn:
    return Turn(index=wire.index, turn=wire.turn, token_ids=np.array(wire.token_ids, dtype=np.int32),
                finish_reason=FINISH_REASONS.get(wire.finish_reason, ""), text=wire.text, num_tokens_left=wire.num_tokens_left)


def summary_of(wire: pb.GroupDone) -> GroupSummary:
    return GroupSummary(num_completions=wire.num_completions, num_prompt_tokens_cached=wire.num_prompt_tokens_cached,
                        queue_ms=wire.queue_ms, prefill_ms=wire.prefill_ms, decode_ms=wire.decode_ms, incomplete=wire.incomplete)
