"""Mutual TLS with the certificates of `tandem certs` and a real server: who gets in, and which servers a client refuses."""
import asyncio
import pathlib
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from tandem_rl import launch
from tandem_rl.client import AsyncRolloutClient, NotReachable, RolloutClient, RolloutError

TOKEN = "the-token-of-this-test-0123456789"


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    out = tmp_path_factory.mktemp("identities") / "certs"
    subprocess.run([launch.find_binary("tandem"), "certs", "--out", out, "--dns", "rollout.example"], check=True,
                   capture_output=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def server(model, certs):
    (certs / "token").write_text(TOKEN + "\n")
    (certs / "token").chmod(0o600)
    with launch.RolloutServer(model, dtype="fp32", tls=certs / "rollout", token_file=certs / "token",
                              environment={"OMP_NUM_THREADS": "1"}) as running:
        yield running


def test_a_client_with_certificate_and_token_samples_and_scores(server, certs):
    with server.client(tls=certs / "client", token=TOKEN) as client:
        completion = client.generate_group([5, 6], 1, max_new_tokens=4, seed=1).completions[0]
        assert len(client.score([[5, 6, *completion.token_ids]]).sequences[0].logprobs) == 2 + len(completion.token_ids)

    async def main():
        async with AsyncRolloutClient(server.address, tls=str(certs / "client"), token=TOKEN) as other:
            group = await other.generate_group([5, 6], 1, max_new_tokens=4, seed=1)
            return group.completions[0]
    assert asyncio.run(main()).token_ids.tolist() == completion.token_ids.tolist()


def test_a_role_that_may_not_and_a_wrong_token_are_refused_by_the_server(server, certs):
    with server.client(tls=certs / "viewer", token=TOKEN) as viewer:
        assert viewer.info().dtype == "fp32"
        with pytest.raises(RolloutError, match="role viewer may not call") as denied:
            viewer.generate_group([5, 6], 1, max_new_tokens=4)
    assert denied.value.code == "PERMISSION_DENIED"
    for token in (None, "another-token-0123456789"):
        with server.client(tls=certs / "client", token=token) as stranger, pytest.raises(RolloutError) as unknown:
            stranger.info()
        assert unknown.value.code == "UNAUTHENTICATED"


def test_plaintext_and_a_foreign_authority_get_no_connection(server, tmp_path):
    with server.client() as plain, pytest.raises(NotReachable):
        plain.info()
    subprocess.run([launch.find_binary("tandem"), "certs", "--out", tmp_path / "others"], check=True, capture_output=True, timeout=120)
    with server.client(tls=tmp_path / "others/client", token=TOKEN) as foreign, pytest.raises(NotReachable, match="CERTIFICATE_VERIFY"):
        foreign.info()


def test_a_certificate_that_is_put_right_is_used_by_the_next_call(server, certs, tmp_path):
    mine = tmp_path / "mine"
    subprocess.run([launch.find_binary("tandem"), "certs", "--out", tmp_path / "others"], check=True, capture_output=True, timeout=120)
    shutil.copytree(tmp_path / "others/client", mine)
    with server.client(tls=mine, token=TOKEN) as client:
        with pytest.raises(NotReachable):
            client.info()
        shutil.copytree(certs / "client", mine, dirs_exist_ok=True)
        assert client.info().dtype == "fp32"


class Impostor:
    """Takes one TLS connection with the certificate of a directory, and keeps the first byte that comes after the handshake."""

    def __init__(self, directory: pathlib.Path):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        self.context.set_alpn_protocols(["h2"])
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.received = None
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        connection, _ = self.socket.accept()
        try:
            with self.context.wrap_socket(connection, server_side=True) as secure:
                self.received = secure.recv(1)
        except OSError:  # the caller left while the session's tickets were under way
            self.received = b""


@pytest.mark.parametrize("names, subject, words", [
    ("URI:spiffe://a/tandem/client,DNS:localhost", "/CN=a", "of role client, not of a rollout server"),
    ("DNS:localhost", "/CN=a", "of role none, not of a rollout server"),
    ("URI:spiffe://a/tandem/rollout", "/O=a", "neither a DNS name nor an address nor a common name"),
])
def test_a_server_of_another_role_or_without_a_name_is_refused_before_the_first_byte_of_a_call(certs, tmp_path, names, subject, words):
    """By their authority and use alone, these certificates could be a server's."""
    make_certificate(certs, tmp_path, names, subject)
    impostor = Impostor(tmp_path)
    with RolloutClient(impostor.address, tls=certs / "client", token=TOKEN) as client, pytest.raises(NotReachable, match=words):
        client.info()
    impostor.thread.join(60)
    impostor.socket.close()
    assert impostor.received == b""


def test_a_certificate_with_a_spiffe_id_and_a_common_name_alone_will_do(start, certs, tmp_path):
    make_certificate(certs, tmp_path, "URI:spiffe://cluster.local/tandem/rollout/pod-1", "/CN=pod-1")
    with start(tls=tmp_path).client(tls=certs / "trainer") as client:
        assert client.info().dtype == "fp32"


def make_certificate(certs, out, names, subject):
    """A directory for TLS, signed by the authority of `certs`, for both uses."""
    authority = certs / "authority"
    shutil.copyfile(certs / "rollout/ca.crt", out / "ca.crt")
    (out / "ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", out / "tls.key", "-out",
            out / "csr", "-subj", subject)
    openssl("x509", "-req", "-in", out / "csr", "-CA", authority / "ca.crt", "-CAkey", authority / "ca.key", "-set_serial", "77",
            "-days", "1", "-extfile", out / "ext", "-out", out / "tls.crt")


def test_missing_or_broken_files_are_named(certs, tmp_path):
    (tmp_path / "tls.crt").write_text("no certificate")
    with RolloutClient("127.0.0.1:1", tls=tmp_path) as client, pytest.raises(ValueError, match="tls.key cannot be read .*tandem certs"):
        client.info()
    shutil.copytree(certs / "client", tmp_path, dirs_exist_ok=True)
    (tmp_path / "tls.crt").write_text("no certificate")
    with RolloutClient("127.0.0.1:1", tls=tmp_path) as client, pytest.raises(ValueError, match="does not hold a certificate"):
        client.info()
