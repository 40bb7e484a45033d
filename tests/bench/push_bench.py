#!/usr/bin/env python3
"""A weight push over loopback gRPC into a server that is decoding: seconds from BeginUpdate to the commit's
answer, and how long no decode step could run.

Pushes the model's own tensors in the server's dtype as versions 1..N, in chunks of 2 MiB, while one group
keeps the engine busy. Prints one JSON object (median, min, max over the pushes after the first).

    .deps/venv/bin/python tests/bench/push_bench.py [--model DIR] [--repeats 6]
"""
import argparse
import json
import pathlib
import statistics
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import rollout_client  # noqa: E402
from weight_pusher import WeightPusher, tensor_bytes  # noqa: E402

CHUNK_BYTES = 2 << 20


def push(pusher, version):
    """One push; returns (seconds, the commit's answer)."""
    start = time.perf_counter()
    commit = pusher.push(version)
    return time.perf_counter() - start, commit


def keep_busy(stub, pb, stop):
    """Groups of 32 completions, one after the other, until told to stop."""
    group = 0
    while not stop.is_set():
        group += 1
        request = pb.GenerateGroupRequest(
            group_id=group, prompt_token_ids=list(range(100, 164)), num_completions=32,
            sampling=pb.SamplingParams(temperature=1, max_new_tokens=64, seed=group, ignore_eos=True))
        for _ in stub.GenerateGroup(request, timeout=600):
            pass


def summary(values):
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3),
            "max": round(max(values), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path,
                        default=HERE.parents[1] / "models" / "smollm2-135m-instruct")
    parser.add_argument("--repeats", type=int, default=6)
    args = parser.parse_args()

    rollout, rollout_grpc, weights, weights_grpc = rollout_client.load_stubs()
    data = tensor_bytes(args.model)
    with rollout_client.Server(args.model, "--dtype", "bf16") as server:
        pusher = WeightPusher(weights_grpc.WeightServiceStub(server.channel), weights, data, run_id="bench",
                              chunk_bytes=CHUNK_BYTES)
        results = {}
        for load in ("idle", "decoding"):
            stop = threading.Event()
            busy = threading.Thread(target=keep_busy, args=(
                rollout_grpc.RolloutServiceStub(server.channel), rollout, stop))
            if load == "decoding":
                busy.start()
            first = 1 + len(results) * (args.repeats + 1)
            pushes = [push(pusher, first + i)
                      for i in range(args.repeats + 1)][1:]
            stop.set()
            if load == "decoding":
                busy.join()
            results[load] = {"push_and_commit_s": summary([s for s, _ in pushes]),
                             "verify_and_pack_s": summary([c.verify_ms / 1e3 for _, c in pushes]),
                             "pause_ms": summary([c.pause_ms for _, c in pushes])}
    size = sum(map(len, data.values()))
    print(json.dumps({"benchmark": "push", "dtype": "bf16", "megabytes": round(size / 1e6, 1), **results}))


if __name__ == "__main__":
    main()
