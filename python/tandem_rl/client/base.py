"""What both clients are made of: whom they call, as whom, and for how long."""
from __future__ import annotations

import os
from typing import Any

from .caller import Caller
from .deadline import Deadline
from .errors import RolloutError, from_rpc

SHORT_SECONDS = 20.0  # for calls that the server answers at once


class ClientBase:
    """The base of RolloutClient and AsyncRolloutClient, with their arguments.

    address: HOST:PORT of the server. tls: directory with tls.crt, tls.key and ca.crt of a client or trainer; None: plaintext.
    token: bearer token, with tls only. secret: by which the server tells this caller from others; None: a random one. run_id: of a
    run that owns the server and whose secret this is. deadline_seconds: of calls that do not say. retry_busy: ask a busy server
    again, when it says, until the deadline. Raises ValueError for arguments that can never work."""

    def __init__(self, address: str, *, tls: str | os.PathLike[str] | None = None, token: str | None = None,
                 secret: str | None = None, run_id: str = "", deadline_seconds: float = 600.0, retry_busy: bool = True) -> None:
        self._caller = Caller(address, tls, token, secret)
        self._run_id = run_id
        self._deadline_seconds = deadline_seconds
        self._retry_busy = retry_busy

    @property
    def address(self) -> str:
        return self._caller.address

    def _deadline(self, seconds: float | None) -> Deadline:
        return Deadline(self._deadline_seconds if seconds is None else seconds)

    def _failure(self, error: Any) -> RolloutError:
        """The exception for a grpc.RpcError."""
        failure = from_rpc(error, self.address)
        if failure.code == "UNAVAILABLE":
            self._caller.failed()
        return failure

    def _pause_seconds(self, failure: RolloutError, deadline: Deadline) -> float | None:
        """After how many seconds the call is worth repeating; None if it is not."""
        return deadline.pause_after(failure) if self._retry_busy else None
