"""Data sets in every format, read row by row as pyarrow, pandas, csv and the library `datasets` read what they wrote."""
import csv
import datetime
import gzip
import json
import math
import os
import pathlib
import subprocess

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

DRIVER = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "preference_driver"

TEXTS = ["plain", "", "ümlaut 你好 🙂", "two\nlines\r\nof \"quoted\", text", "tab\tand \\ and \u2028", "null", "NaN", " spaces ", "007", "x" * 100_000]
ROWS = [{"prompt": [{"role": "user", "content": text, "name": None}], "text": text, "number": None if i % 3 == 0 else i - 4, "big": 2**53 + i,
         "share": [None, 0.1, 1e300, -0.0, 1.5][i % 5], "flag": [True, False, None][i % 3], "nested": {"a": [i, None], "b": {"c": text or None}},
         "empty": [], "none": None} for i, text in enumerate(TEXTS)]


def run(path, **part):
    request = json.dumps({"kind": "rows", "path": str(path), **part})
    return subprocess.run([DRIVER], input=request, capture_output=True, text=True, timeout=120, check=False)


def read(path, **part):
    done = run(path, **part)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fails(path, **part):
    done = run(path, **part)
    assert done.returncode == 1, done.stdout[:300]
    return done.stderr


def table():
    return pa.Table.from_pylist(ROWS)


# Each writes ROWS to a file.

def write_jsonl(path):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), encoding="utf-8")


def write_jsonl_of_pandas(path):
    pd.DataFrame({"row": ROWS})["row"].to_json(path, orient="records", lines=True)


def write_json(path):
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")


def write_parquet(path):
    pq.write_table(table(), path, row_group_size=3)


def write_parquet_of_pandas(path):
    # pandas turns integers with nulls to floats: its columns come from Arrow here.
    table().to_pandas(types_mapper=pd.ArrowDtype).to_parquet(path)


def write_stream(path):
    with pa.ipc.new_stream(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=4)


def write_file(path):
    with pa.ipc.new_file(path, table().schema) as writer:
        writer.write_table(table())


def write_feather(path):
    pa.feather.write_feather(table(), path, compression="lz4")


FORMATS = {"a.jsonl": write_jsonl, "b.ndjson": write_jsonl_of_pandas, "c.json": write_json, "d.parquet": write_parquet,
           "f.parquet": write_parquet_of_pandas, "g.arrow": write_stream, "h.arrow": write_file, "i.feather": write_feather}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(tmp_path, name):
    FORMATS[name](tmp_path / name)
    assert read(tmp_path / name) == ROWS


@pytest.mark.parametrize("name", ["a.jsonl", "c.json"])
def test_compressed_text_is_read(tmp_path, name):
    FORMATS[name](tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(whole[:1000]) + gzip.compress(whole[1000:]))
    with pa.CompressedOutputStream(str(tmp_path / f"{name}.zst"), "zstd") as out:
        out.write(whole)
    for ending in (".gz", ".zst"):
        assert read(tmp_path / (name + ending)) == ROWS
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(whole)[:400])
    assert f"{name}.gz: cannot be read as JSON" in fails(tmp_path / f"{name}.gz")


def test_csv_is_read_as_its_writers_meant_it(tmp_path):
    rows = [{"a": text, "b": str(i), "c, d": None} for i, text in enumerate(TEXTS)]
    want = [{**row, "a": row["a"] or None} for row in rows]  # CSV does not tell an empty text from none
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "pandas.csv", index=False)
    frame.to_csv(tmp_path / "pandas.tsv", index=False, sep="\t")
    frame.to_csv(tmp_path / "pandas.csv.gz", index=False)
    with open(tmp_path / "python.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    for name in ("pandas.csv", "pandas.tsv", "pandas.csv.gz", "python.csv"):
        assert read(tmp_path / name) == want, name
    with open(tmp_path / "python.csv", newline="", encoding="utf-8") as file:
        assert [{key: value or None for key, value in row.items()} for row in csv.DictReader(file)] == read(tmp_path / "python.csv")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_unusual_types_are_told_as_texts_and_numbers(tmp_path, ending):
    moment = datetime.datetime(2024, 2, 29, 12, 30, 1, 250000)
    columns = pa.table({
        "dictionary": pa.array(["x", None, "x"]).dictionary_encode(),
        "large": pa.array(["a", "b", None], pa.large_string()),
        "moment": pa.array([moment, None, moment], pa.timestamp("ms")),
        "zoned": pa.array([moment, moment, None], pa.timestamp("us", tz="UTC")),
        "day": pa.array([moment.date(), None, None]),
        "bytes": pa.array([b"\x00\xff", None, b""]),
        "floats": pa.array([math.nan, math.inf, -math.inf]),
        "small": pa.array([0.1, None, 2.0], pa.float32()),
        "half": pa.array([0.5, None, 1.0], pa.float32()).cast(pa.float16()),
        "unsigned": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        "nothing": pa.nulls(3),
    })
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        pq.write_table(columns, path)
    else:
        with pa.ipc.new_stream(path, columns.schema) as writer:
            writer.write_table(columns)
    rows = read(path)
    assert [row["dictionary"] for row in rows] == ["x", None, "x"]
    assert [row["large"] for row in rows] == ["a", "b", None]
    assert datetime.datetime.fromisoformat(rows[0]["moment"]) == moment and rows[1]["moment"] is None
    assert datetime.datetime.fromisoformat(rows[0]["zoned"]) == moment.replace(tzinfo=datetime.timezone.utc)
    assert rows[0]["day"] == "2024-02-29"
    assert [row["bytes"] for row in rows] == ["00ff", None, ""]
    assert [row["floats"] for row in rows] == ["NaN", "Infinity", "-Infinity"]
    assert [row["small"] for row in rows] == [0.1, None, 2.0]
    assert [row["half"] for row in rows] == [0.5, None, 1.0]
    assert [row["unsigned"] for row in rows] == [2**64 - 1, 0, None]
    assert [row["map"] for row in rows] == [{"k": 1}, {}, None]
    assert [row["fixed"] for row in rows] == [[1, 2], None, [3, 4]]
    assert [row["nothing"] for row in rows] == [None] * 3


def test_more_rows_than_a_part_keep_their_order(tmp_path):
    rows = [{"n": n, "text": "y" * (n % 700)} for n in range(5000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    with pa.ipc.new_stream(tmp_path / "x.arrow", pa.Table.from_pylist(rows).schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows))
    pd.DataFrame(rows).to_json(tmp_path / "x.json", orient="records")
    for ending in ("parquet", "arrow", "json"):
        assert read(tmp_path / f"x.{ending}") == rows


@pytest.mark.parametrize("write", [pq.write_table, lambda empty, path: pa.feather.write_feather(empty, path)])
def test_no_rows_are_no_error(tmp_path, write):
    write(table().slice(0, 0), tmp_path / "x.parquet" if write is pq.write_table else tmp_path / "x.feather")
    assert read(next(tmp_path.iterdir())) == []


@pytest.mark.parametrize("name", ["d.parquet", "g.arrow", "h.arrow", "i.feather"])
def test_damaged_files_are_errors_and_no_crash(tmp_path, name):
    path = tmp_path / name
    FORMATS[name](path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), len(whole) // 12 + 1):
        path.write_bytes(whole[:cut])
        done = run(path)
        assert done.returncode in (0, 1), (cut, done.stderr)  # a stream may end after any batch
        if done.returncode == 1:
            assert f"{path}: cannot be read as " in done.stderr
        else:
            assert name == "g.arrow" and json.loads(done.stdout) == ROWS[:len(json.loads(done.stdout))]
    for at in range(0, len(whole), len(whole) // 40 + 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:])
        assert run(path).returncode in (0, 1)


def test_two_columns_of_one_name_are_refused(tmp_path):
    columns = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pa.ipc.new_stream(tmp_path / "x.arrow", columns.schema) as writer:
        writer.write_table(columns)
    assert 'two columns have the name "a": rename one' in fails(tmp_path / "x.arrow")


# Directories of the library `datasets`.

def dataset():
    return datasets.Dataset.from_list(ROWS)


def test_save_to_disk_is_read_by_its_shards(tmp_path):
    dataset().save_to_disk(tmp_path / "one", num_shards=3)
    assert len(list((tmp_path / "one").glob("*.arrow"))) == 3
    assert read(tmp_path / "one") == ROWS == datasets.load_from_disk(tmp_path / "one").to_list()


def test_selected_and_shuffled_rows_are_those_of_the_library(tmp_path):
    chosen = dataset().shuffle(seed=3).select(range(2, 9))
    chosen.save_to_disk(tmp_path / "chosen")
    assert read(tmp_path / "chosen") == datasets.load_from_disk(tmp_path / "chosen").to_list() == chosen.to_list()


def test_a_dict_of_splits_is_read_by_split(tmp_path):
    splits = datasets.DatasetDict({"train": dataset(), "validation": dataset().select([1, 2])})
    splits.save_to_disk(tmp_path / "dict")
    assert read(tmp_path / "dict") == ROWS
    assert read(tmp_path / "dict", split="validation") == read(f"{tmp_path}/dict:validation") == ROWS[1:3]
    assert "no split 'test'; the splits are train, validation" in fails(tmp_path / "dict", split="test")


def test_features_of_the_library_are_read(tmp_path):
    features = datasets.Features({"label": datasets.ClassLabel(names=["no", "yes"]), "turns": datasets.Sequence({"role": datasets.Value("string")}),
                                  "big": datasets.LargeList(datasets.Value("large_string"))})
    rows = datasets.Dataset.from_dict({"label": [1, 0], "turns": [{"role": ["a", "b"]}, {"role": []}], "big": [["x"], []]}, features=features)
    rows.save_to_disk(tmp_path / "set")
    assert read(tmp_path / "set") == rows.to_list()


# Directories as repositories of the Hub are; load_dataset reads the same files.

def load(path, name=None):
    loaded = datasets.load_dataset(str(path), name, cache_dir=str(path.parent / "cache"))
    return {split: rows.to_list() for split, rows in loaded.items()}


def test_a_repository_with_shards_is_read_as_by_the_library(tmp_path):
    repository = tmp_path / "repository"
    (repository / "data").mkdir(parents=True)
    for split, start in (("train", 0), ("test", 6)):
        for shard in range(2):
            pq.write_table(pa.Table.from_pylist(ROWS[start + 2 * shard:start + 2 * shard + 2]),
                           repository / "data" / f"{split}-0000{shard}-of-00002.parquet")
    want = load(repository)
    assert read(repository) == want["train"] and read(f"{repository}:test") == want["test"]


@pytest.mark.parametrize("files", [
    {"train.jsonl": 1, "test.jsonl": 2}, {"data/train/a.jsonl": 1, "data/train/b.jsonl": 2, "data/validation/a.jsonl": 3},
    {"my-dev_1.jsonl": 1, "my-train_1.jsonl": 2}, {"whatever.jsonl": 1}, {"train_0.jsonl": 1, "train_1.jsonl": 2, "eval_0.jsonl": 3}])
def test_splits_of_names_are_those_of_the_library(tmp_path, files):
    repository = tmp_path / "repository"
    for name, number in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(json.dumps({"n": number}) + "\n")
    for split, rows in load(repository).items():
        assert read(repository, split=split) == rows


def test_subsets_of_the_front_matter_are_those_of_the_library(tmp_path):
    repository = tmp_path / "repository"
    for name, number in {"main/train-00000-of-00001": 1, "main/test-00000-of-00001": 2, "socratic/train-00000-of-00001": 3}.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"n": [number]}), repository / f"{name}.parquet")
    (repository / "README.md").write_text("""---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
# A page
""")
    for subset in ("main", "socratic"):
        for split, rows in load(repository, subset).items():
            assert read(repository, subset=subset, split=split) == rows
    assert "which subset is meant? the subsets are main, socratic" in fails(repository)
