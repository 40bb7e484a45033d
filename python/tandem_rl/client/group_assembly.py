"""GroupAssembly: puts the events of one call together to a group, and checks each against the request. Pure; both clients use it.

A server's answer is checked as the trainer checks it (trainer/experience/group_check.h): per-token arrays of one length, version
spans over all sampled tokens, versions that never decrease, and the hash of the ids where the package xxhash is installed."""
from __future__ import annotations

from typing import Any

from .._proto import rollout_pb2 as pb
from .errors import data_loss
from .results import Completion, Group, GroupSummary, Turn, completion_of, summary_of, turn_of
from .token_ids import Int32Array, hash_of

PARALLEL = ("behaviour_logprobs", "raw_logprobs", "entropies", "logprob_second_moments", "kept_mass", "decode_batch_sizes",
            "prefix_cached")


class GroupAssembly:
    """Takes the events of the call of `request` in their order. Methods raise RolloutError with DATA_LOSS."""

    def __init__(self, request: pb.GenerateGroupRequest) -> None:
        self._request = request
        self._completions: dict[int, Completion] = {}
        self.summary: GroupSummary | None = None

    def take(self, event: pb.GenerateGroupResponse) -> Completion | Turn | None:
        """What the event brings; None for the end of the group."""
        kind = event.WhichOneof("event")
        if kind == "completion":
            return self._take_completion(event.completion)
        if kind == "turn":
            turn = turn_of(event.turn)
            self._check_ids(f"{self._name(turn.index)} turn {turn.turn}", turn.token_ids, event.turn.token_hash)
            return turn
        if kind == "done":
            self.summary = summary_of(event.done)
        return None

    def check_end(self) -> None:
        """Checks, when the stream has ended, that nothing is missing."""
        want = self._request.num_completions + self._request.greedy_baseline
        if self.summary is None or len(self._completions) != want:
            raise data_loss(f"group {self._request.group_id} ended with {len(self._completions)} of {want} completions")

    def group(self) -> Group:
        """The whole group, after the end of the stream."""
        self.check_end()
        assert self.summary is not None
        ordered = [self._completions[index] for index in sorted(self._completions)]
        baseline = ordered.pop() if self._request.greedy_baseline else None
        return Group(self._request.group_id, tuple(ordered), baseline, self.summary)

    def _name(self, index: int) -> str:
        return f"group {self._request.group_id} completion {index}"

    def _take_completion(self, wire: pb.Completion) -> Completion:
        completion = completion_of(wire)
        first = self._request.first_completion
        end = first + self._request.num_completions + self._request.greedy_baseline
        if not first <= completion.index < end or completion.index in self._completions:
            raise data_loss(f"{self._name(completion.index)}: want each index from {first} to {end - 1} once")
        self._check_ids(self._name(completion.index), completion.token_ids, wire.token_hash)
        self._check_lengths(completion)
        self._check_spans(completion)
        if not completion.finish_reason:
            raise data_loss(f"{self._name(completion.index)} has no finish reason")
        self._completions[completion.index] = completion
        return completion

    def _check_ids(self, name: str, ids: Int32Array, sent_hash: int) -> None:
        if len(ids) == 0:
            raise data_loss(f"{name} has no tokens")
        found = hash_of(ids)
        if found not in (0, sent_hash):
            raise data_loss(f"{name}: token_ids hash to {found:x}, the server sent {sent_hash:x}: the ids were changed on the way")

    def _check_lengths(self, completion: Completion) -> None:
        parallel: dict[str, Any] = {field: getattr(completion, field) for field in PARALLEL}
        if completion.support is not None:
            parallel["support"] = completion.support
        if completion.top_logprobs is not None:
            parallel["top_logprobs"] = completion.top_logprobs.ids
        for field, values in parallel.items():
            if len(values) != len(completion.token_ids):
                raise data_loss(f"{self._name(completion.index)} has {len(completion.token_ids)} token_ids and {len(values)} {field}")
        if completion.segments and sum(one.num_tokens for one in completion.segments) != len(completion.token_ids):
            raise data_loss(f"{self._name(completion.index)} has segments that do not add up to {len(completion.token_ids)} tokens")

    def _check_spans(self, completion: Completion) -> None:
        name = self._name(completion.index)
        newest = self._request.min_weight_version
        for span in completion.version_spans:
            if span.weight_version < newest:
                raise data_loss(f"{name} has tokens of weight version {span.weight_version} after version {newest} was asked for "
                                "or seen")
            newest = span.weight_version
        covered, sampled = sum(span.num_tokens for span in completion.version_spans), int(completion.sampled.sum())
        if covered != sampled:
            raise data_loss(f"{name} has {sampled} sampled tokens and version spans over {covered}")
