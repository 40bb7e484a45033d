"""Errors of calls as exceptions: RolloutError, with a subclass where a caller would act otherwise. The reasons are those of
docs/rollouts.md, section Refusals."""
from __future__ import annotations

from typing import Any

# Refusals of a server that is healthy: the same call is worth repeating later (common/rpc/refusal.h).
BUSY = ("QUEUE_FULL", "DEADLINE_BEFORE_START", "MEMORY_FULL")
# Refusals of this call at any time: repeating it cannot help.
WRONG = ("TOO_LARGE", "DEADLINE_TOO_FAR")


class RolloutError(Exception):
    """A call failed. The text has the server's words."""

    def __init__(self, message: str, *, code: str, refusal: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.code = code  # gRPC's: "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", ...
        self.refusal = refusal  # the server's reason: "QUEUE_FULL", ...; empty where it gave none
        self.retry_after_seconds = retry_after_seconds  # when to ask again; None where the server did not say


class ServerBusy(RolloutError):
    """The server is healthy and has no place for the call now: QUEUE_FULL, DEADLINE_BEFORE_START or MEMORY_FULL."""


class InvalidRequest(RolloutError):
    """The call is wrong or too large, and repeating it cannot help."""


class NotReachable(RolloutError):
    """There is no connection to a rollout server at this address, or the server is draining."""


def data_loss(message: str) -> RolloutError:
    """The server's answer contradicts itself or the request."""
    return RolloutError(message, code="DATA_LOSS")


def invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="INVALID_ARGUMENT")


def _class_of(code: str, refusal: str) -> type[RolloutError]:
    if refusal in BUSY:
        return ServerBusy
    if code == "INVALID_ARGUMENT" or refusal in WRONG:
        return InvalidRequest
    return NotReachable if code == "UNAVAILABLE" else RolloutError


def from_rpc(error: Any, address: str) -> RolloutError:
    """The exception for a grpc.RpcError of a call to `address`, of grpc or of grpc.aio."""
    code = error.code().name
    metadata = {str(key): value for key, value in error.trailing_metadata() or ()}
    refusal = str(metadata.get("tandem-refusal", ""))
    after = str(metadata.get("retry-after-ms", ""))
    return _class_of(code, refusal)(f"{address}: {error.details()} ({refusal or code})", code=code, refusal=refusal,
                                    retry_after_seconds=int(after) / 1000 if after.isdecimal() else None)
