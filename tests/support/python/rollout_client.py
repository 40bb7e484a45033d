"""Python clients in tests and benchmarks: stubs of proto/, and a rollout server as a child process."""
import importlib
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time

import grpc

SOURCE = pathlib.Path(os.environ.get("TANDEM_SOURCE", pathlib.Path(__file__).resolve().parents[3]))
BIN = pathlib.Path(os.environ.get("TANDEM_BIN", SOURCE / "build" / "release" / "bin"))


def load_stubs():
    """Generates the stubs in a temporary directory. Returns (rollout_pb2, rollout_pb2_grpc, weights_pb2, weights_pb2_grpc)."""
    from grpc_tools import protoc

    out = tempfile.mkdtemp(prefix="tandem-stubs-")
    names = ["rollout", "weights"]
    code = protoc.main(["protoc", f"-I{SOURCE}", f"--python_out={out}", f"--grpc_python_out={out}",
                        *[f"proto/{name}.proto" for name in names]])
    if code != 0:
        raise RuntimeError("protoc failed")
    sys.path.insert(0, out)
    return tuple(importlib.import_module(f"proto.{name}_{kind}") for name in names
                 for kind in ("pb2", "pb2_grpc"))


def load_vllm_stubs():
    """Those of proto/vllm: (inference_pb2, inference_pb2_grpc, control_pb2, control_pb2_grpc)."""
    from grpc_tools import protoc

    out = tempfile.mkdtemp(prefix="tandem-stubs-")
    names = ["inference", "control"]
    code = protoc.main(["protoc", f"-I{SOURCE / 'proto' / 'vllm'}", f"--python_out={out}", f"--grpc_python_out={out}",
                        *[f"{name}.proto" for name in names]])
    if code != 0:
        raise RuntimeError("protoc failed")
    sys.path.insert(0, out)
    return tuple(importlib.import_module(f"{name}_{kind}") for name in names for kind in ("pb2", "pb2_grpc"))


def tls_credentials(directory, token=None):
    """Channel credentials from a TLS directory (tls.crt, tls.key, ca.crt), with a bearer token if the server needs one."""
    key, certificate, authorities = (
        (pathlib.Path(directory) / name).read_bytes() for name in ("tls.key", "tls.crt", "ca.crt"))
    credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
    if token is None:
        return credentials
    return grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))


def history_arguments():
    """Flags with which a server records its history in the directory of the test (tests/end_to_end/conftest.py)."""
    folder = os.environ.get("TANDEM_TEST_HISTORY")
    return ["--set", f"server.history={folder}"] if folder else []


class _SecretInterceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor,
                    grpc.StreamUnaryClientInterceptor):
    """Adds metadata to every call by which a server recognises its owner, and a client without ownership as the caller of its groups."""

    def __init__(self, secret):
        self.secret = ("tandem-caller-secret", secret)

    def _call(self, proceed, details, request):
        metadata = (*(details.metadata or ()), self.secret)
        return proceed(details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = _call


def as_caller(channel, secret=None):
    """A channel whose calls have this secret, or a new one."""
    return grpc.intercept_channel(channel, _SecretInterceptor(secret or secrets.token_hex(32)))


def grpc_completions(stubs, server, prompt, n=1, **sampling):
    """The completions of one group through GenerateGroup, in order of index. `stubs` are those of load_stubs."""
    rollout, rollout_grpc = stubs[0], stubs[1]
    request = rollout.GenerateGroupRequest(prompt_token_ids=prompt, num_completions=n,
                                           sampling=rollout.SamplingParams(**sampling))
    found = [one.completion for one in rollout_grpc.RolloutServiceStub(server.channel).GenerateGroup(request, timeout=60)
             if one.HasField("completion")]
    return sorted(found, key=lambda one: one.index)


class Server:
    """A rollout server on a free port or on `port`. Use it as a context manager. `credentials` are those of the caller if the
    server uses TLS. With `http` it also speaks HTTP, at `url`."""

    def __init__(self, model, *args, env=None, port=0, host="127.0.0.1", credentials=None, http=False):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-server-")
        port_file = pathlib.Path(self.folder.name) / "port"
        http_port_file = pathlib.Path(self.folder.name) / "http_port"
        if http:
            args = (*args, "--http-listen", f"{host}:0", "--http-port-file", str(http_port_file))
        self.log = open(pathlib.Path(self.folder.name) / "log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [str(BIN / "rollout_server"), "--model", str(model), "--listen", f"{host}:{port}",
             "--port-file", str(port_file), *history_arguments(), *args],
            stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
        deadline = time.monotonic() + 120
        while not (port_file.exists() and port_file.read_text().strip()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"rollout_server did not start:\n{self.output()}")
            try:
                self.process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                pass
        if http:
            self.http_port = int(http_port_file.read_text())
            self.url = f"http{'' if credentials is None else 's'}://127.0.0.1:{self.http_port}"
        self.address = f"127.0.0.1:{int(port_file.read_text().strip().split(':')[-1])}"
        options = [("grpc.max_receive_message_length", 256 << 20), ("grpc.max_send_message_length", 256 << 20)]
        self.channel = as_caller(grpc.insecure_channel(self.address, options=options) if credentials is None
                                 else grpc.secure_channel(self.address, credentials, options=options))

    def output(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.channel.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        self.folder.cleanup()
