"""Samples from a running rollout server and prints every completion with its log-probs.

usage: python examples/python_client.py ADDRESS MODEL_DIR [PROMPT]    (needs grpcio-tools and tokenizers)
"""
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


def main(address, model, prompt="What is 6 * 7?"):
    pb, services = load_stubs()
    stub = services.RolloutServiceStub(grpc.insecure_channel(address))
    ids = Tokenizer.from_file(f"{model}/tokenizer.json").encode(prompt).ids
    sampling = pb.SamplingParams(temperature=1.0, max_new_tokens=16, seed=1)
    request = pb.GenerateGroupRequest(prompt_token_ids=ids, num_completions=4, sampling=sampling)
    for event in stub.GenerateGroup(request, timeout=60):
        completion = event.completion
        if completion.token_ids:
            print(f"#{completion.index} {completion.text!r}")
            print("   log-probs", " ".join(f"{p:.3f}" for p in completion.behaviour_logprobs))


if __name__ == "__main__":
    main(*sys.argv[1:])
