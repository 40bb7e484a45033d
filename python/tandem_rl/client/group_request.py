"""Requests of groups from keyword arguments. The server checks the values; what it refuses is InvalidRequest."""
from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypedDict

from .._proto import rollout_pb2 as pb
from .errors import invalid
from .token_ids import TokenIds, as_ids, hash_of


class GroupOptions(TypedDict, total=False):
    """How a group is sampled, by keyword; the defaults are those of group_request."""
    temperature: float  # 0 is greedy, for evaluation; else at least 0.001
    top_k: int  # keep this many of the likeliest ids; 0: all
    top_p: float  # in (0, 1]; 1: all
    min_p: float  # in [0, 1); 0: all
    min_new_tokens: int  # no stop id before this many tokens
    stop_token_ids: Sequence[int]  # beside the model's own end tokens
    stop_strings: Sequence[str]  # matched on the server's own text
    seed: int | None  # 64 bits; completions are a function of it; None: a random one, which Completion.seed tells
    ignore_eos: bool  # the model's own end tokens do not stop
    top_logprobs: int  # this many of the likeliest ids come with each token, at most 128
    return_support: bool  # the ids that top_k, top_p and min_p left come with each token
    adapter: str  # one of ServerInfo.adapters; empty: what is served
    priority: int  # higher ones are admitted first
    greedy_baseline: bool  # one greedy completion more, beside the others and of the same weights
    first_completion: int  # index of the first completion: 4 from 0 on and 12 from 4 on draw what 16 would
    min_weight_version: int  # refuse older weights
    group_id: int | None  # None: a random one; a call with the id of one in flight, of the same secret, joins it
    max_turns: int  # above 1, completions have several turns, and the call needs `answer`
    max_completion_tokens: int  # of all turns, given tokens included; 0: max_new_tokens times max_turns


def group_request(prompt_token_ids: TokenIds, num_completions: int, *, max_new_tokens: int, run_id: str = "",
                  temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, min_new_tokens: int = 0,
                  stop_token_ids: Sequence[int] = (), stop_strings: Sequence[str] = (), seed: int | None = None,
                  ignore_eos: bool = False, top_logprobs: int = 0, return_support: bool = False, adapter: str = "",
                  priority: int = 0, greedy_baseline: bool = False, first_completion: int = 0, min_weight_version: int = 0,
                  group_id: int | None = None, max_turns: int = 1,
                  max_completion_tokens: int = 0) -> pb.GenerateGroupRequest:
    """The message. Raises InvalidRequest for what does not fit into its fields."""
    ids = as_ids(prompt_token_ids, "prompt_token_ids")
    turns = (pb.Turns(max_turns=max_turns, max_completion_tokens=max_completion_tokens or max_new_tokens * max_turns)
             if max_turns > 1 else None)
    try:
        sampling = pb.SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens, stop_token_ids=stop_token_ids, stop_strings=stop_strings,
            seed=secrets.randbits(63) if seed is None else seed, ignore_eos=ignore_eos, top_logprobs=top_logprobs,
            return_support=return_support)
        return pb.GenerateGroupRequest(
            run_id=run_id, group_id=secrets.randbits(62) if group_id is None else group_id, prompt_token_ids=ids.tolist(),
            num_completions=num_completions, sampling=sampling, min_weight_version=min_weight_version, prompt_hash=hash_of(ids),
            priority=priority, greedy_baseline=greedy_baseline, first_completion=first_completion, adapter=adapter, turns=turns)
    except (TypeError, ValueError) as error:
        raise invalid(f"an argument does not fit into its field of proto/rollout.proto: {error}") from error


def check_answer(request: pb.GenerateGroupRequest, has_answer: bool) -> None:
    """Raises InvalidRequest for several turns that nobody would answer."""
    if request.HasField("turns") and not has_answer:
        raise invalid(f"max_turns is {request.turns.max_turns} and there is no `answer` to a turn")


def continue_request(request: pb.GenerateGroupRequest, turn: pb.Turn,
                     token_ids: TokenIds | None) -> pb.ContinueCompletionRequest:
    """What answers a turn of a group: the ids that the completion goes on with, or None to finish it."""
    ids = as_ids(() if token_ids is None else token_ids, "the answer to a turn")
    return pb.ContinueCompletionRequest(run_id=request.run_id, group_id=request.group_id, index=turn.index, turn=turn.turn,
                                        token_ids=ids.tolist(), token_hash=hash_of(ids), finish=token_ids is None)
