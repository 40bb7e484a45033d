"""Samples from a running rollout server and prints every completion with its log-probs.

usage: python examples/python_client.py ADDRESS MODEL_DIR [PROMPT] [--tls DIR [--token-file FILE] [--server-name NAME]]
(needs grpcio-tools and tokenizers)
"""
import argparse
import os
import sys
import tempfile

import grpc
from grpc_tools import protoc
from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def load_stubs():
    """Generates the stubs of proto/rollout.proto into a temporary directory and imports them."""
    out = tempfile.mkdtemp()
    arguments = [f"-I{ROOT}", f"--python_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main(["protoc", *arguments, f"{ROOT}/proto/rollout.proto"]) == 0
    sys.path.insert(0, out)
    from proto import rollout_pb2, rollout_pb2_grpc
    return rollout_pb2, rollout_pb2_grpc


def connect(flags):
    """A channel, with mutual TLS if a directory with tls.crt, tls.key and ca.crt is given (docs/security.md)."""
    if not flags.tls:
        return grpc.insecure_channel(flags.address)
    files = []
    for name in ("ca.crt", "tls.key", "tls.crt"):
        with open(os.path.join(flags.tls, name), "rb") as file:
            files.append(file.read())
    credentials = grpc.ssl_channel_credentials(*files)
    if flags.token_file:
        with open(flags.token_file, encoding="ascii") as file:
            token = file.readline().strip()
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    # Python's gRPC checks the host name in the server's certificate. Give its name if the address is another one.
    options = [("grpc.ssl_target_name_override", flags.server_name)] if flags.server_name else []
    return grpc.secure_channel(flags.address, credentials, options=options)


def main():
    parser = argparse.ArgumentParser(description="Samples from a running rollout server.")
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("prompt", nargs="?", default="What is 6 * 7?")
    parser.add_argument("--tls", help="directory of tls.crt, tls.key and ca.crt of a client or trainer")
    parser.add_argument("--token-file", help="bearer token that the server asks for")
    parser.add_argument("--server-name", help="DNS name in the server's certificate")
    flags = parser.parse_args()
    pb, services = load_stubs()
    stub = services.RolloutServiceStub(connect(flags))
    ids = Tokenizer.from_file(f"{flags.model}/tokenizer.json").encode(flags.prompt).ids
    sampling = pb.SamplingParams(temperature=1.0, max_new_tokens=16, seed=1)
    request = pb.GenerateGroupRequest(prompt_token_ids=ids, num_completions=4, sampling=sampling)
    for event in stub.GenerateGroup(request, timeout=60):
        completion = event.completion
        if completion.token_ids:
            print(f"#{completion.index} {completion.text!r}")
            print("   log-probs", " ".join(f"{p:.3f}" for p in completion.behaviour_logprobs))


if __name__ == "__main__":
    main()
