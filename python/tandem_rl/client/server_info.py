"""ServerInfo: what a rollout server says of itself."""
from __future__ import annotations

from dataclasses import dataclass, fields

from .._proto import rollout_pb2 as pb


@dataclass(frozen=True)
class ServerInfo:
    """The fields of GetInfoResponse (proto/rollout.proto), which explains them."""
    server_version: str
    model_type: str
    model_path: str
    dtype: str  # "fp32" or "bf16"
    vocab_size: int
    max_context_tokens: int
    kv_capacity_tokens: int
    kv_used_tokens: int
    live_weight_version: int
    weight_epoch: int
    num_groups_running: int
    num_groups_queued: int
    max_queued_groups: int
    owner_run_id: str  # empty: no run owns the server
    draining: bool
    paused: bool
    tokenizer_hash: str  # XXH3-128 of tokenizer.json, hex
    num_threads: int
    num_tokens_sampled: int
    num_prompt_tokens_computed: int
    eos_token_ids: tuple[int, ...]
    numerics: str  # "fast", "invariant" or "exact"
    instruction_set: str
    in_flight: str  # what a commit does to groups in flight: "keep", "recompute", "abort" or "drain"
    num_preemptions: int
    num_prefix_hits: int
    num_prefix_misses: int
    max_deadline_ms: int  # later deadlines are refused
    injected: tuple[str, ...]  # faults injected for calibration
    engine_silent_ms: int
    lora: str  # "merged" or "unmerged"
    adapters: tuple[str, ...]  # that a request may choose
    weights: str  # number formats
    max_engine_silent_ms: int


def server_info(response: pb.GetInfoResponse) -> ServerInfo:
    values = {field.name: getattr(response, field.name) for field in fields(ServerInfo)}
    for name in ("eos_token_ids", "injected", "adapters"):
        values[name] = tuple(values[name])
    return ServerInfo(**values)
