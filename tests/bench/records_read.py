"""How long `tandem drift check` reads a large records file, and how much memory it takes: the sentence of docs/records.md.

    .deps/venv/bin/python tests/bench/records_read.py --tandem build/release/bin/tandem [--tokens 10000000]

Writes rows of 1,000 tokens with two columns of random log-probs, as JSON lines of Python's json.dumps and as Parquet of pyarrow (Snappy),
and prints for each form the size of the file, the seconds of the program and its peak memory.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

import numpy
import pyarrow
import pyarrow.parquet

HEADER = {"tandem_capture": 3, "vocab_size": 50000, "behaviour": {"engine": "vllm"}, "proximal": {"engine": "fsdp"}}
TOKENS, PROMPT = 1000, 100  # of a row
SCHEMA = pyarrow.schema(
    [("token_ids", pyarrow.list_(pyarrow.int32())), ("prompt_length", pyarrow.int64()),
     ("behaviour_logprobs", pyarrow.list_(pyarrow.float32())), ("proximal_logprobs", pyarrow.list_(pyarrow.float32()))],
    metadata={"tandem_capture": json.dumps(HEADER)})


def random_row(source):
    behaviour = -source.exponential(1, TOKENS).astype(numpy.float32)
    proximal = numpy.minimum(behaviour + source.normal(0, 0.01, TOKENS).astype(numpy.float32), 0)
    none = [None] * PROMPT
    return {"token_ids": source.integers(0, 50000, TOKENS).tolist(), "prompt_length": PROMPT,
            "behaviour_logprobs": none + behaviour[PROMPT:].tolist(), "proximal_logprobs": none + proximal[PROMPT:].tolist()}


def write_files(folder, num_rows):
    lines, parquet = folder / "records.jsonl", folder / "records.parquet"
    source = numpy.random.default_rng(0)
    with lines.open("w") as file, pyarrow.parquet.ParquetWriter(parquet, SCHEMA) as writer:
        print(json.dumps(HEADER), file=file)
        for first in range(0, num_rows, 1000):
            rows = [random_row(source) for _ in range(min(1000, num_rows - first))]
            file.writelines(json.dumps(row) + "\n" for row in rows)
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA))
    return lines, parquet


def measure(tandem, path):
    """Seconds and peak bytes of one process."""
    begin = time.monotonic()
    process = subprocess.Popen([tandem, "drift", "check", path], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return time.monotonic() - begin, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for path in write_files(pathlib.Path(folder), arguments.tokens // TOKENS):
            seconds, peak = measure(arguments.tandem, path)
            print(f"{path.suffix[1:]}: {arguments.tokens:,} tokens, {path.stat().st_size / 1e6:.0f} MB, {seconds:.1f} s, "
                  f"peak {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
