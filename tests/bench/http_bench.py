"""What HTTP costs beside gRPC: tokens a second of one rollout server over each protocol, with the same load by `tandem bench serve`.

    python http_bench.py --tandem build/release/bin [--rounds 7] [--streams 32] [--dtype bf16] [--client-nice 0] [--stream-interval 1]

The protocols take turns, in another order in each round and with another seed in each run, so that no prompt is found in the prefix
cache. Prints the tokens a second of each run, and the ratio to gRPC of the same round: median, smallest and largest."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]
from tandem_rl.launch import RolloutServer  # noqa: E402

PROTOCOLS = ("grpc", "http", "http-stream")


def tokens_per_second(tandem, address, protocol, args, seed):
    done = subprocess.run(["nice", "-n", str(args.client_nice), tandem / "tandem", "bench", "serve", address, "--protocol", protocol, "--groups", str(3 * args.streams),
                           "--group-size", "1", "--concurrency", str(args.streams), "--prompt-tokens", "64", "--max-new-tokens",
                           str(args.tokens), "--seed", str(seed), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tandem", type=pathlib.Path, required=True, help="directory of the programs")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--client-nice", type=int, default=0, help="niceness of the client: it shares the cores with the server")
    parser.add_argument("--stream-interval", type=int, default=1, help="tokens in an event of a stream, after the first")
    args = parser.parse_args()
    os.environ["TANDEM_BIN"] = str(args.tandem)
    seen = {protocol: [] for protocol in PROTOCOLS}
    with tempfile.TemporaryDirectory() as folder:
        port = pathlib.Path(folder, "http")
        with RolloutServer(args.model, dtype=args.dtype, arguments=[
                "--http-listen", "127.0.0.1:0", "--http-port-file", str(port), "--stream-interval", str(args.stream_interval)]) as server:
            http = f"127.0.0.1:{port.read_text().strip()}"
            for turn in range(-1, args.rounds):  # the first warms up
                for i in range(len(PROTOCOLS)):
                    protocol = PROTOCOLS[(turn + i) % len(PROTOCOLS)]
                    address = server.address if protocol == "grpc" else http
                    speed = tokens_per_second(args.tandem, address, protocol, args, seed=1000 + 10 * turn + i)
                    if turn >= 0:
                        seen[protocol].append(speed)
                print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
    for protocol, speeds in seen.items():
        ratios = [speed / grpc for speed, grpc in zip(speeds, seen["grpc"])]
        print(f"{protocol:12} {statistics.median(speeds):7.1f} tok/s  {' '.join(f'{speed:.0f}' for speed in speeds)}  of gRPC: median "
              f"{statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
