"""What hostile, broken and slow clients of the HTTP port get, and that it costs the others nothing."""
import concurrent.futures
import json
import pathlib
import re
import resource
import socket
import ssl
import subprocess
import time
import urllib.request

import pytest

import small_run
from rollout_client import Server, tls_credentials
from waiting import wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model):
    with Server(model, "--dtype", "fp32", "--set", "server.engine.kv_capacity_tokens=65536", "--set", "server.max_queued_groups=200",
                http=True) as one:
        yield one


def connect(server):
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=60)


def request_bytes(body, path="/v1/completions", method="POST", more=""):
    data = json.dumps(body).encode()
    return (f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{more}\r\n"
            ).encode() + data


def read_answer(connection):
    """Status, headers and body of one answer with a Content-Length."""
    file = connection.makefile("rb")
    status = int(file.readline().split()[1])
    headers = {}
    while (line := file.readline().strip()):
        name, value = line.decode().split(": ", 1)
        headers[name.lower()] = value
    return status, headers, file.read(int(headers["content-length"]))


def metric(server, name):
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.M)
    return float(found.group(1))


def resident_bytes(server):
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) << 10


def is_served(server):
    """Another client's request, while something goes on."""
    data = json.dumps({"prompt": [5, 9], "max_tokens": 2}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status == 200


LONG = {"prompt": [5, 9], "max_tokens": 500, "ignore_eos": True, "stream": True}


def test_a_body_of_100_mb_is_refused_by_its_length_and_with_a_readable_answer(server):
    before = resident_bytes(server)
    with connect(server) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                           b"Content-Length: 104857600\r\n\r\n")
        piece = b" " * MIB
        for _ in range(100):  # the server takes it all and drops it
            connection.sendall(piece)
        status, headers, body = read_answer(connection)
    assert status == 413 and headers["connection"] == "close"
    assert "longer than the 8388608 bytes" in json.loads(body)["error"]["message"]
    assert resident_bytes(server) - before < 20 * MIB
    assert is_served(server)


def test_a_chunked_body_of_100_mb_is_refused_where_it_passes_the_limit(server):
    before = resident_bytes(server)
    with connect(server) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                           b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"100000\r\n" + b" " * MIB + b"\r\n"
        for _ in range(100):
            connection.sendall(piece)
        status, _, body = read_answer(connection)
    assert status == 413 and "longer" in json.loads(body)["error"]["message"]
    assert resident_bytes(server) - before < 40 * MIB


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00" + b"\x00" * 200, b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                                  b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                                  b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 70_000 + b"\r\n\r\n"],
                         ids=["tls", "garbage", "version", "length", "headers"])
def test_what_is_not_http_is_refused_in_the_shape_of_the_api(server, junk):
    with connect(server) as connection:
        connection.sendall(junk)
        status, _, body = read_answer(connection)
    assert status == 400 and "not HTTP/1.1" in json.loads(body)["error"]["message"]
    assert is_served(server)


def test_a_client_that_hangs_up_in_a_stream_frees_what_it_asked_for(server):
    for _ in range(20):
        with connect(server) as connection:
            connection.sendall(request_bytes(LONG))
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    wait_until(lambda: metric(server, "tandem_groups_running") == 0, "groups of clients that hung up run on")
    wait_until(lambda: metric(server, "tandem_kv_used_tokens") == 0, "KV of clients that hung up is held")


def test_a_client_that_hangs_up_before_its_answer_frees_what_it_asked_for(server):
    with connect(server) as connection:
        connection.sendall(request_bytes({**LONG, "prompt": [[5, 9]] * 100, "n": 16, "stream": False}))
        wait_until(lambda: metric(server, "tandem_groups_running") > 0, "no group ever ran", seconds=30)
    wait_until(lambda: metric(server, "tandem_groups_running") + metric(server, "tandem_groups_queued") == 0,
               "the groups of a client that hung up run on", seconds=2)


def test_clients_that_read_nothing_hold_little_memory_and_nobody_up(server):
    before = resident_bytes(server)
    slow = []
    for _ in range(48):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.http_port))
        connection.sendall(request_bytes({**LONG, "n": 2, "logprobs": 20, "return_token_ids": True}))
        slow.append(connection)
    began = time.monotonic()
    assert all(is_served(server) for _ in range(5))
    # Everything is drawn although nobody reads it: nothing waits for these clients.
    wait_until(lambda: metric(server, "tandem_groups_running") == 0 and metric(server, "tandem_groups_queued") == 0,
               "groups wait for clients that do not read")
    assert time.monotonic() - began < 60
    assert resident_bytes(server) - before < 300 * MIB
    assert is_served(server)
    for connection in slow[:4]:  # a slow reader gets it all in the end
        file = connection.makefile("rb")
        text = b"".join(iter(file.readline, b"0\r\n")).decode()
        assert text.rstrip().endswith("data: [DONE]"), text[-200:]
    for connection in slow:
        connection.close()
    wait_until(lambda: metric(server, "tandem_group_memory_bytes") < MIB, "groups of closed connections are held")


def test_500_connections_at_once_are_each_answered_or_told_when_to_ask_again(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    connections = [connect(server) for _ in range(500)]
    body = {"prompt": [5, 9], "max_tokens": 24, "ignore_eos": True}
    for connection in connections:
        connection.sendall(request_bytes(body))
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(read_answer, connections))
    for connection in connections:
        connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    served = [one for one in answers if one[0] == 200]
    refused = [one for one in answers if one[0] == 429]
    assert len(served) + len(refused) == 500
    assert len(served) >= 200, "the queue alone holds 200"
    for _, _, text in served:
        assert json.loads(text)["usage"]["completion_tokens"] == 24
    for _, headers, text in refused:
        error = json.loads(text)["error"]
        assert error["type"] == "rate_limit_error" and error["code"] == "QUEUE_FULL"
        assert int(headers["retry-after"]) >= 1 and int(headers["retry-after-ms"]) >= 1
    assert is_served(server)


def test_requests_on_one_connection_are_answered_one_after_the_other(server):
    bodies = [{"prompt": [5, 9], "max_tokens": n, "ignore_eos": True} for n in (3, 1, 2)]
    with connect(server) as connection:
        connection.sendall(b"".join(request_bytes(body) for body in bodies))
        file = connection.makefile("rb")
        for body in bodies:
            head = b"".join(iter(file.readline, b"\r\n")).decode()
            answer = json.loads(file.read(int(re.search(r"Content-Length: (\d+)", head).group(1))))
            assert answer["usage"]["completion_tokens"] == body["max_tokens"]


def test_a_server_that_drains_refuses_requests_and_ends_streams_whole(model):
    with Server(model, "--dtype", "fp32", http=True) as server, connect(server) as connection:
        connection.sendall(request_bytes(LONG))
        file = connection.makefile("rb")
        assert file.readline().startswith(b"HTTP/1.1 200")
        server.process.terminate()
        rest = file.read().decode()
        assert server.process.wait(timeout=60) == 0
    assert "data: [DONE]" in rest and rest.endswith("0\r\n\r\n")
    assert '"finish_reason":"length"' in rest, "the drain lets it end"


# --- certificates and tokens

TOKEN = "a-token-of-enough-length"


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    out = tmp_path_factory.mktemp("identities") / "certs"
    assert subprocess.run([small_run.TANDEM, "certs", "--out", out], timeout=60).returncode == 0
    return out


@pytest.fixture(scope="module")
def secure(model, certs, tmp_path_factory):
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN + "\n")
    with Server(model, "--dtype", "fp32", "--tls", str(certs / "rollout"), "--token-file", str(token), http=True,
                credentials=tls_credentials(certs / "client", TOKEN)) as server:
        yield server


def call(server, certs, role, path, body=None, token=TOKEN):
    context = ssl.create_default_context(cafile=certs / role / "ca.crt")
    context.load_cert_chain(certs / role / "tls.crt", certs / role / "tls.key")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://localhost:{server.http_port}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("role, path, body, status", [
    ("client", "/v1/completions", {"prompt": [5], "max_tokens": 1}, 200),
    ("trainer", "/v1/completions", {"prompt": [5], "max_tokens": 1}, 200),
    ("viewer", "/v1/models", None, 200),
    ("viewer", "/v1/completions", {"prompt": [5], "max_tokens": 1}, 403),
    ("client", "/update_weights", {"weight_dir": "/nowhere"}, 403),
    ("client", "/pause?mode=keep", {}, 403),
])
def test_a_role_may_call_what_it_may_by_grpc(secure, certs, role, path, body, status):
    code, answer = call(secure, certs, role, path, body)
    assert code == status, answer
    if status == 403:
        assert answer["error"]["type"] == "permission_error" and f"role {role} may not call" in answer["error"]["message"]


@pytest.mark.parametrize("token", [None, "another-token-of-enough-length"], ids=["none", "wrong"])
def test_without_the_token_nothing_is_served(secure, certs, token):
    code, answer = call(secure, certs, "client", "/v1/completions", {"prompt": [5], "max_tokens": 1}, token)
    assert code == 401 and answer["error"]["type"] == "authentication_error"


def test_without_a_certificate_there_is_no_connection(secure, certs):
    context = ssl.create_default_context(cafile=certs / "client" / "ca.crt")
    with socket.create_connection(("localhost", secure.http_port), timeout=60) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        with context.wrap_socket(raw, server_hostname="localhost") as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            connection.recv(100)


def test_http_in_plaintext_beyond_loopback_is_refused(model):
    done = subprocess.run([small_run.TANDEM.parent / "rollout_server", "--model", model, "--http-listen", "0.0.0.0:0"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "server.http_listen is '0.0.0.0:0': without TLS only loopback" in done.stderr
