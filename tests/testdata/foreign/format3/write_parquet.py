"""Writes records.parquet from records.jsonl with pyarrow, as another engine's exporter would: the header in the metadata of
the table, one column a field."""
import json
import pathlib
import sys

import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).parent
TYPES = {
    "token_ids": pyarrow.list_(pyarrow.int32()), "prompt_length": pyarrow.int64(), "loss_mask": pyarrow.list_(pyarrow.int8()),
    "behaviour_logprobs": pyarrow.list_(pyarrow.float32()), "proximal_logprobs": pyarrow.list_(pyarrow.float64()),
    "behaviour_top_ids": pyarrow.list_(pyarrow.list_(pyarrow.int64())),
    "behaviour_top_logprobs": pyarrow.list_(pyarrow.list_(pyarrow.float32())),
    "version_spans": pyarrow.list_(pyarrow.list_(pyarrow.int64())), "weight_version": pyarrow.int64(),
    "step": pyarrow.int32(), "group_id": pyarrow.string(), "row_id": pyarrow.string(), "finish_reason": pyarrow.string(),
    "stop_token_kept": pyarrow.bool_(), "reward": pyarrow.float64(),
    "extra": pyarrow.struct([("note", pyarrow.string())]),
}


def with_numbers(value):
    """The texts that JSON has for numbers that it does not have, as numbers."""
    if isinstance(value, list):
        return [with_numbers(element) for element in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def write(lines, output, compression="zstd", rows_in_a_group=2):
    header, *rows = lines
    schema = pyarrow.schema(list(TYPES.items()), metadata={"tandem_capture": header})
    rows = [{name: with_numbers(value) for name, value in json.loads(row).items()} for row in rows]
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    pyarrow.parquet.write_table(table, output, compression=compression, row_group_size=rows_in_a_group)


if __name__ == "__main__":
    write((HERE / "records.jsonl").read_text().splitlines(), HERE / "records.parquet")
