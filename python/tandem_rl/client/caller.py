"""Caller: who calls which server. Makes the channels of both clients and the metadata of their calls."""
from __future__ import annotations

import os
import pathlib
import secrets
import threading
from typing import Any

import grpc

from .tls import TlsFiles, host_and_port, look_at_server, read_directory

MAX_MESSAGE_BYTES = 64 << 20  # the largest message from a server (common/rpc/refusal.h)
LOOK_SECONDS = 20.0
# As in common/rpc/caller_channel.cc. The pool of its own lets a client that is made anew make a new connection too. Servers are never
# behind a proxy (docs/security.md), though many environments name one for HTTP.
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.keepalive_time_ms", 20000),
           ("grpc.keepalive_timeout_ms", 10000), ("grpc.http2.max_pings_without_data", 0),
           ("grpc.min_reconnect_backoff_ms", 5000), ("grpc.use_local_subchannel_pool", 1)]
SERVICE = "/tandem.rollout.v1.RolloutService/"


class Caller:
    """One server's address, and the certificate, token and secret that its calls show. Thread-safe. Raises ValueError for what can
    never work."""

    def __init__(self, address: str, tls: str | os.PathLike[str] | None, token: str | None, secret: str | None) -> None:
        host_and_port(address)
        if token is not None and tls is None:
            raise ValueError("token without tls: a bearer token is never sent in plaintext")
        if secret is not None and not (32 <= len(secret) <= 256 and secret.isascii() and secret.isprintable()):
            raise ValueError("secret: want 32 to 256 printable ASCII characters; secrets.token_hex(32) makes some")
        self.address = address
        self.metadata = (("tandem-caller-secret", secret or secrets.token_hex(32)),)
        self._directory = None if tls is None else pathlib.Path(tls)
        self._token = token
        self._mu = threading.Lock()
        self._channels: list[Any] = []  # the last one is used; calls of the others may be under way
        self._seen: tuple[TlsFiles, str] | None = None  # files, and the name in the server's certificate
        self._made_with: tuple[TlsFiles, str] | None = None  # of the last channel
        self._is_stale = self._directory is not None
        self._is_closed = False

    def needs_look(self) -> bool:
        """Whether `look` is needed before `channel`."""
        return self._is_stale

    def look(self, seconds: float) -> None:
        """Reads the files and looks at the server, which takes at most `seconds`. Raises as look_at_server."""
        assert self._directory is not None
        seen = read_directory(self._directory), look_at_server(self.address, self._directory, min(seconds, LOOK_SECONDS))
        with self._mu:
            self._seen, self._is_stale = seen, False

    def failed(self) -> None:
        """The server was not reached: files or its certificate may have been renewed."""
        self._is_stale = self._directory is not None

    def channel(self, library: Any) -> Any:
        """The channel of `library`, which is grpc or grpc.aio. A new one where look has seen something new."""
        with self._mu:
            if self._is_closed:
                raise ValueError("the client is closed")
            if not self._channels or self._seen != self._made_with:
                self._channels.append(self._new_channel(library))
                self._made_with = self._seen
            return self._channels[-1]

    def close(self) -> list[Any]:
        """Ends the use of the channels, and returns them for the caller to close."""
        with self._mu:
            self._is_closed = True
            channels, self._channels = self._channels, []
            return channels

    def _new_channel(self, library: Any) -> Any:
        if self._seen is None:
            return library.insecure_channel(self.address, options=OPTIONS)
        files, name = self._seen
        credentials = grpc.ssl_channel_credentials(files.authorities, files.key, files.certificate)
        if self._token is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(self._token))
        return library.secure_channel(self.address, credentials, options=[*OPTIONS, ("grpc.ssl_target_name_override", name)])
