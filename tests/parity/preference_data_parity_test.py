"""Parquet files and preference data compared with what pyarrow and the tokenizer of transformers make of them."""
import json
import math
import os
import pathlib
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

DRIVER = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "preference_driver"
TOKENIZER = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "tests" / "testdata" / "smollm2-tokenizer"


def run(request):
    return subprocess.run([DRIVER], input=json.dumps(request), capture_output=True, text=True)


def read(request):
    done = run(request)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def message(role, content):
    return {"role": role, "content": content}


ROWS = [{"prompt": f"What is {i} + é?", "chosen": [message("user", f"What is {i} + é?"), message("assistant", f"It is {i}.\n")],
         "rejected": [message("user", f"What is {i} + é?"), message("assistant", "No idea")],
         "score_chosen": 8.0 + i, "score_rejected": 0.5, "margin": i / 8, "label_id": None if i % 2 else i, "flag": i % 3 == 0}
        for i in range(2500)]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_rows_are_those_of_pyarrow(tmp_path, compression, dictionary):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, compression=compression, use_dictionary=dictionary, row_group_size=700)
    assert read({"kind": "rows", "path": str(path)}) == ROWS


def test_the_second_version_of_data_pages_is_read(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, data_page_version="2.0", version="2.6")
    assert read({"kind": "rows", "path": str(path)}) == ROWS


def test_a_float_that_json_does_not_have_is_a_text_and_a_null_stays_one(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": pa.array([math.nan, math.inf, None, 1.5]), "b": pa.array([-math.inf, 2, 3, 4], pa.float32())}), path)
    assert read({"kind": "rows", "path": str(path)}) == [
        {"a": "NaN", "b": "-Infinity"}, {"a": "Infinity", "b": 2}, {"a": None, "b": 3}, {"a": 1.5, "b": 4}]


def test_another_compression_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS[:3]), path, compression="brotli")
    done = run({"kind": "rows", "path": str(path)})
    assert done.returncode == 1
    assert f"{path}: " in done.stderr and "brotli" in done.stderr


def test_every_damaged_file_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS[:40]), path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:cut])
        assert run({"kind": "rows", "path": str(path)}).returncode == 1


def test_a_parquet_file_has_the_token_ids_of_the_same_json_lines_and_of_transformers(tmp_path):
    rows = [{name: row[name] for name in ("prompt", "chosen", "rejected", "margin")} for row in ROWS[:8]]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pairs = {kind: read({"kind": "data", "path": str(tmp_path / f"rows.{kind}"), "tokenizer": str(TOKENIZER)})
             for kind in ("parquet", "jsonl")}
    assert pairs["parquet"] == pairs["jsonl"]
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    for row, (prompt, chosen, rejected, margin) in zip(rows, pairs["jsonl"], strict=True):
        assert margin == row["margin"]
        assert prompt == tokenizer.apply_chat_template(row["chosen"][:1], add_generation_prompt=True, return_dict=False)
        for mine, side in ((chosen, row["chosen"]), (rejected, row["rejected"])):
            assert mine == tokenizer(side[1]["content"], add_special_tokens=False)["input_ids"] + [2]
            # TRL's sequence is the same up to the line break that the template writes after its end token.
            whole = tokenizer.apply_chat_template(side, return_dict=False)
            assert whole[:len(prompt) + len(mine)] == prompt + mine


def test_a_bad_row_of_a_parquet_file_is_named_by_its_number(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1.0},
                                         {"prompt": "a", "chosen": "b", "rejected": "c", "margin": math.nan}]), path)
    done = run({"kind": "data", "path": str(path), "tokenizer": str(TOKENIZER)})
    assert done.returncode == 1
    assert f'{path}: row 2: "margin" is "NaN", want a finite number' in done.stderr
