"""Mutual TLS of a caller: the files of a TLS directory (docs/security.md), and a look at the server before gRPC connects.

The C++ callers accept a server by the role in its certificate and check no host name. Python's gRPC can do neither: it always
checks a name, and shows the certificate to nobody. So this module first makes a TLS connection of its own with the same files. There
it checks authority and role, and reads a name out of the certificate, which gRPC then expects in place of the address
("grpc.ssl_target_name_override"). The gRPC connection itself is checked for the authority and that name."""
from __future__ import annotations

import pathlib
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from .errors import NotReachable

ROLE = "rollout"


@dataclass(frozen=True)
class TlsFiles:
    """Contents of the three PEM files."""
    certificate: bytes  # tls.crt
    key: bytes  # tls.key
    authorities: bytes  # ca.crt


def read_directory(directory: pathlib.Path) -> TlsFiles:
    """Raises ValueError where a file is missing or unreadable."""
    contents = []
    for name in ("tls.crt", "tls.key", "ca.crt"):
        try:
            contents.append((directory / name).read_bytes())
        except OSError as error:
            raise ValueError(f"tls: {directory / name} cannot be read ({error.strerror}): want a directory with tls.crt, tls.key and "
                             "ca.crt, as `tandem certs --out certs` makes one for each role") from None
    return TlsFiles(*contents)


def role_of(certificate: dict[str, Any]) -> str:
    """The role in a certificate as ssl.SSLSocket.getpeercert() gives it, by the rule of common/rpc/roles.h; empty without one."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    if any(uri.startswith("spiffe://") for uri in uris):
        path = uris[0].removeprefix("spiffe://").split("/")[1:] if len(uris) == 1 else []
        return path[1] if len(path) > 1 and path[0] == "tandem" else ""
    common = _common_name(certificate)
    return common.removeprefix("tandem-") if common.startswith("tandem-") else ""


def name_in(certificate: dict[str, Any]) -> str:
    """A name that gRPC accepts for this certificate: a DNS name, else an address, else the common name; empty without any."""
    names = certificate.get("subjectAltName", ())
    for wanted in ("DNS", "IP Address"):
        for kind, value in names:
            if kind == wanted:
                return str(value).replace("*.", "any.", 1) if value.startswith("*.") else str(value)
    return _common_name(certificate)


def _common_name(certificate: dict[str, Any]) -> str:
    return next((value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"), "")


def host_and_port(address: str) -> tuple[str, int]:
    """Raises ValueError for what is not HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r} is no address of a server: want HOST:PORT")
    return host.strip("[]"), int(port)


def look_at_server(address: str, directory: pathlib.Path, seconds: float) -> str:
    """The name that gRPC shall expect of the server. Raises NotReachable where nothing answers, the handshake fails, or the server
    is no rollout server, and ValueError where the files of `directory` are no certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key", password="")  # never asks for a passphrase
        context.load_verify_locations(directory / "ca.crt")
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"tls: {directory} does not hold a certificate, its key without a passphrase and authorities: {error}") from None
    try:
        with (socket.create_connection(host_and_port(address), timeout=max(seconds, 0.001)) as plain,
              context.wrap_socket(plain) as secure):
            certificate: dict[str, Any] = dict(secure.getpeercert() or {})
    except OSError as error:  # also of TLS, which is one
        raise NotReachable(f"{address}: no TLS connection ({error})", code="UNAVAILABLE") from error
    role = role_of(certificate)
    if role != ROLE:
        raise NotReachable(f"{address}: the peer's certificate is of role {role or 'none'}, not of a rollout server",
                           code="UNAVAILABLE")
    name = name_in(certificate)
    if not name:
        raise NotReachable(f"{address}: the server's certificate has neither a DNS name nor an address nor a common name, and Python's "
                           "gRPC takes no server without one: add any", code="UNAVAILABLE")
    return name
