"""`tandem drift check` on the program: what a records file holds, each kind of fault with its message and exit code, Parquet as
pyarrow writes it, and the JSON Schema of docs/ held against the reader."""
import json
import os
import pathlib
import subprocess
import sys

import jsonschema
import numpy
import pytest
import safetensors.numpy
import xxhash

from forked_tandem import forked_tandem

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
FORMAT3 = SOURCE / "tests/testdata/foreign/format3"
sys.path.insert(0, str(FORMAT3))
import write_parquet  # noqa: E402

HEADER = {"tandem_capture": 3, "model": "m", "vocab_size": 100, "behaviour": {"engine": "vllm", "temperature": 0.7}}
ROW = {"token_ids": [1, 2, 3], "prompt_length": 1, "behaviour_logprobs": [None, -1.5, -2.0], "proximal_logprobs": [None, -1.5, -2.0]}


def check(*arguments):
    return forked_tandem("drift", "check", *arguments)


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def refused(path):
    done = check(path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout == ""
    return done.stderr


def test_the_example_of_the_page_can_be_read(tmp_path):
    page = (SOURCE / "docs/records.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True)
    done = check(tmp_path / "records.jsonl")
    assert done.returncode == 0, done.stderr
    assert "1 rows, 6 tokens, 3 of them drawn" in done.stdout
    assert "behaviour: engine vllm engine_version 0.32.0 dtype bfloat16 logprobs processed temperature 0.7 top_p 1.0" in done.stdout
    assert "Nothing strange in the numbers." in done.stdout


def test_json_says_what_the_file_holds_and_what_is_strange(tmp_path):
    strange = {**ROW, "behaviour_logprobs": [None, 1.0, -9999], "proximal_logprobs": [None, None, 0.0], "row_id": "r1"}
    path = write(tmp_path / "r.jsonl", HEADER, ROW, strange)
    done = check(path, "--json", "--json-out", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said == json.loads((tmp_path / "out.json").read_text())
    assert (said["format"], said["rows"], said["tokens"], said["drawn_tokens"]) == (3, 2, 6, 4)
    assert said["header"]["behaviour"] == HEADER["behaviour"]
    assert said["columns"][1] == {"name": "proximal_logprobs", "values": 3, "nan": 0, "infinite": 0, "values_on_drawn_tokens": 3}
    found = {(finding["kind"], finding["column"]): finding["count"] for finding in said["findings"]}
    assert found == {("value_one", "behaviour_logprobs"): 1, ("value_missing_mark", "behaviour_logprobs"): 1,
                     ("drawn_without_value", "proximal_logprobs"): 1, ("value_zero", "proximal_logprobs"): 1}
    assert 'first in row "r1", element 1.' in said["findings"][0]["text"]
    assert "exactly 1.0 at 1 of 4 drawn tokens" in check(path).stdout


FAULTS = {
    "r.jsonl:3: token_ids: expected a token id (a whole number below 2^31), found \"a\" at byte 16": [
        HEADER, ROW, {**ROW, "token_ids": ["a", 2, 3]}],
    "r.jsonl:2 (row \"seven\"): proximal_logprobs: expected 3 elements, one for each of token_ids, found 2": [
        HEADER, {**ROW, "row_id": "seven", "proximal_logprobs": [-1, -2]}],
    "r.jsonl:2: old_log_probs: expected a field of docs/records.md, found another; did you mean proximal_logprobs?": [
        HEADER, {**ROW, "old_log_probs": [1]}],
    "r.jsonl:1: behaviour.temprature: expected a field of docs/records.md, found another; did you mean temperature?": [
        {"tandem_capture": 3, "behaviour": {"temprature": 1}}],
    "r.jsonl:1: tandem_capture: expected the header as the first line": [ROW],
    "r.jsonl:1: tandem_capture: expected 3, the format that this program reads, found 4": [{"tandem_capture": 4}],
    "r.jsonl:2: token_ids: expected ids of at least 0 and below the header's vocab_size, 100, found 100 at element 2": [
        HEADER, {**ROW, "token_ids": [1, 2, 100]}],
    "found the end (is the file cut short?)": [HEADER, json.dumps(ROW)[:-20]],
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_is_named_with_its_place(tmp_path, message):
    assert message in refused(write(tmp_path / "r.jsonl", *FAULTS[message]))


def test_other_files_are_named(tmp_path):
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert "found an empty file" in refused(empty)
    packed = tmp_path / "r.jsonl.gz"
    packed.write_bytes(b"\x1f\x8b\x08\x00")
    assert "is compressed with gzip" in refused(packed)
    assert "No such file" in refused(tmp_path / "none")
    (tmp_path / "folder").mkdir()
    assert "found a directory" in refused(tmp_path / "folder")


@pytest.mark.parametrize("version", [1, 2])
def test_a_capture_of_a_run_says_what_it_is(tmp_path, version):
    path = write_capture(tmp_path / "capture", version)
    done = check(path)
    assert done.returncode == 0, done.stderr
    assert f"a capture of format {version}, as Tandem's own runs write it" in done.stdout
    assert "1 completions in 1 groups, 2 drawn tokens, of train step 12" in done.stdout
    assert json.loads(check(path, "--json").stdout)["format"] == version
    (path / "tensors.safetensors").write_bytes(b"")
    assert "was cut short or changed" in refused(path)


def write_capture(path, version):
    """One completion of two tokens."""
    columns = {"int32": {"prompt_ids": [1, 2], "group": [0], "completion_index": [0], "token_ids": [7, 8], "decode_batch_size": [1, 1]},
               "int64": {"group_id": [4], "prompt_offsets": [0, 2], "token_offsets": [0, 2], "token_hash": [5], "seed": [1],
                         "weight_version": [12, 12]},
               "float64": {"reward": [1]}, "uint8": {"masked": [0], "finish": [1], "prefix_cached": [0, 0]},
               "float32": {name: [-1, -2] for name in ("behaviour_logprobs", "raw_logprobs", "proximal_logprobs", "entropies",
                                                       "logprob_second_moments", "kept_mass", "advantages")}}
    if version == 1:
        columns["int32"]["support_ids"], columns["int64"]["support_offsets"] = [], [0, 0, 0]
    else:
        columns["uint8"]["packed_support"], columns["int64"]["packed_support_offsets"] = [], [0, 0, 0]
    path.mkdir()
    arrays = {name: numpy.array(values, dtype) for dtype, some in columns.items() for name, values in some.items()}
    safetensors.numpy.save_file(arrays, path / "tensors.safetensors")
    manifest = {"format": "tandem-capture", "format_version": version, "created_at": "", "tandem_version": "0.1.0", "source": "run",
                "run_id": "r", "step": 12, "proximal_version": 12,
                "model": {"path": "models/small", "type": "llama", "config_digest": "", "tokenizer_hash": ""},
                "sampling": {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "min_new_tokens": 0, "max_new_tokens": 8},
                "servers": [], "trainer": {"dtype": "", "numerics": "", "instruction_set": "", "library": "", "row_tokens": 0},
                "weights": [], "injected": [], "columns_digest": xxhash.xxh3_128_hexdigest((path / "tensors.safetensors").read_bytes())}
    write(path / "manifest.json", manifest)
    return path


def test_bare_nan_of_python_is_the_text_nan(tmp_path):
    nan, infinity = float("nan"), float("-inf")
    bare = write(tmp_path / "bare.jsonl", HEADER, {**ROW, "behaviour_logprobs": [None, nan, infinity]})
    texts = write(tmp_path / "text.jsonl", HEADER, {**ROW, "behaviour_logprobs": [None, "NaN", "-Infinity"]})
    assert "NaN, " in bare.read_text()
    said = [json.loads(check(path, "--json").stdout) for path in (bare, texts)]
    assert said[0]["columns"] == said[1]["columns"]
    assert [finding["kind"] for finding in said[0]["findings"]] == ["nan", "minus_infinity"]


@pytest.fixture(scope="module")
def of_json_lines():
    """What is said of the records that the tests of Parquet write."""
    return json.loads(check(FORMAT3 / "records.jsonl", "--json").stdout)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_parquet_of_pyarrow_says_the_same_as_json_lines(tmp_path, of_json_lines, compression):
    lines = (FORMAT3 / "records.jsonl").read_text().splitlines()
    write_parquet.write(lines, tmp_path / "r.parquet", compression)
    parquet = json.loads(check(tmp_path / "r.parquet", "--json").stdout)
    assert {**parquet, "path": ""} == {**of_json_lines, "path": ""}
    assert parquet["tokens"] == 13


@pytest.mark.parametrize("compression", ["lz4", "brotli"])
def test_parquet_of_another_codec_names_it_and_the_command_that_rewrites_the_file(tmp_path, compression):
    lines = (FORMAT3 / "records.jsonl").read_text().splitlines()
    write_parquet.write(lines, tmp_path / "r.parquet", compression)
    said = refused(tmp_path / "r.parquet")
    assert f"r.parquet: expected Parquet without compression or with Snappy, gzip or Zstandard, found pages compressed with {compression}" in said
    command = said.split("rewrite it: python ")[1].replace("IN.parquet", "r.parquet").replace("OUT.parquet", "again.parquet")
    subprocess.run(f"{sys.executable} {command}", shell=True, cwd=tmp_path, check=True)
    assert "tokens" in check(tmp_path / "again.parquet").stdout


def test_faults_of_parquet_name_the_row(tmp_path):
    lines = (FORMAT3 / "records.jsonl").read_text().splitlines()
    wrong = json.loads(lines[3])
    write_parquet.write([*lines[:3], json.dumps({**wrong, "prompt_length": 3})], tmp_path / "r.parquet")
    assert "r.parquet: row 2: prompt_length: expected 0 to 2 (the tokens of the row), found 3" in refused(tmp_path / "r.parquet")
    import pyarrow.parquet
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "plain.parquet")
    assert "expected the header in the key-value metadata under `tandem_capture`" in refused(tmp_path / "plain.parquet")


def top(ids, logprobs):
    return {"behaviour_top_ids": ids, "behaviour_top_logprobs": logprobs}


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


GOOD_HEADERS = [
    {"tandem_capture": 3},
    HEADER,
    {"tandem_capture": 3.0, "vocab_size": None, "eos_token_ids": [2, 3.0], "extra": {"a": [1]}},
    {**HEADER, "proximal": {"policy": "moving", "logprobs": "raw", "top_k": -1, "min_tokens": 0, "temperature": 0}},
    {**HEADER, "columns": {"behaviour_top_logprobs": {"from": "x"}, "advantages": {}}},
]
BAD_HEADERS = [
    {}, [], 3, {"tandem_capture": "3"}, {"tandem_capture": None}, {**HEADER, "modle": "x"}, {**HEADER, "vocab_size": 0},
    {**HEADER, "vocab_size": "100"}, {**HEADER, "eos_token_ids": 2}, {**HEADER, "eos_token_ids": [-1]}, {**HEADER, "extra": 1},
    {**HEADER, "behaviour": {"policy": "moving"}}, {**HEADER, "behaviour": {"top_p": 1.5}}, {**HEADER, "behaviour": "vllm"},
    {**HEADER, "behaviour": {"logprobs": "scaled"}}, {**HEADER, "behaviour": {"temperature": True}},
    {**HEADER, "proximal": {"policy": "behaviour"}}, {**HEADER, "columns": {"logprobs": {}}},
    {**HEADER, "columns": {"advantages": {"form": "x"}}}, {**HEADER, "columns": {"advantages": "x"}},
    {**HEADER, "proximal": {"repetition_penalty": 0}}, {**HEADER, "proximal": {"min_tokens": 1.5}},
]
GOOD_ROWS = [
    ROW,
    {**without(ROW, "prompt_length"), "loss_mask": [0, True, 1.0]},
    {**ROW, "loss_mask": [0, 1, 1]},
    without(ROW, "behaviour_logprobs"),
    {**ROW, "behaviour_logprobs": None, "step": None, "extra": None},
    {**ROW, "reference_logprobs": ["NaN", "Infinity", "-Infinity"]},
    {**ROW, **top([None, [5, 6], []], [None, [-0.5, None], []])},
    {**ROW, "version_spans": [[1, 1], [2, 1]]},
    {**ROW, "weight_version": 7.0, "group_id": "g", "reward": "NaN", "advantage": 1e-9, "stop_token_kept": False},
    {**ROW, "advantages": [0, 1, 1], "advantage": None, "group_id": 7, "extra": {"x": {"y": []}}},
]
BAD_ROWS = [
    [], {}, without(ROW, "token_ids"), without(ROW, "prompt_length"), {**ROW, "token_ids": None}, {**ROW, "token_ids": []},
    without(ROW, "behaviour_logprobs", "proximal_logprobs"), {**ROW, "prompt_length": None}, {**ROW, "prompt_length": 1.5},
    {**ROW, "prompt_length": -1}, {**ROW, "token_ids": [1, 2, 2.5]}, {**ROW, "token_ids": [1, 2, 2**31]},
    {**ROW, "loss_mask": [0, 1, 2]}, {**ROW, "loss_mask": "011"}, {**ROW, "behaviour_logprobs": [None, "x", 1]},
    {**ROW, "behaviour_logprobs": [None, "nan", 1]}, {**ROW, "behaviour_logprobs": []}, {**ROW, "behaviour_logprobs": -1},
    {**ROW, "behaviour_logprobs": [None, True, 1]}, {**ROW, "behavior_logprobs": [1, 2, 3]}, {**ROW, "step": "3"},
    {**ROW, "behaviour_top_ids": [[], [1], [2]]}, {**ROW, **top([[], [1], 2], [[], [1], [2]])},
    {**ROW, **top(None, [[], [1], [2]])}, {**ROW, "version_spans": [[1, 2, 3]]}, {**ROW, "version_spans": [[1, 0], [1, 2]]},
    {**ROW, "version_spans": [{"version": 1, "num_tokens": 2}]}, {**ROW, "advantage": 1, "advantages": [0, 1, 1]},
    {**ROW, "advantage": "Infinity", "advantages": [0, 1, 1]}, {**ROW, "stop_token_kept": 1}, {**ROW, "row_id": 7},
    {**ROW, "group_id": 1.5}, {**ROW, "extra": "x"}, {**ROW, "finish_reason": ["stop"]}, {**ROW, "reward": True},
]


@pytest.fixture(scope="module")
def schema():
    return json.loads((SOURCE / "docs/records.schema.json").read_text())


def fits(schema, part, value):
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]}).is_valid(value)


def test_schema_and_reader_take_the_same(tmp_path, schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    for header in GOOD_HEADERS:
        assert fits(schema, "header", header), header
        done = check(write(tmp_path / "r.jsonl", header, *GOOD_ROWS))
        assert done.returncode == 0, (header, done.stderr)
    for row in GOOD_ROWS:
        assert fits(schema, "row", row), row


def test_schema_and_reader_refuse_the_same_headers(tmp_path, schema):
    for header in BAD_HEADERS:
        assert not fits(schema, "header", header), header
        assert "r.jsonl" in refused(write(tmp_path / "r.jsonl", header, ROW)), header


def test_schema_and_reader_refuse_the_same_rows(tmp_path, schema):
    for row in BAD_ROWS:
        assert not fits(schema, "row", row), row
        assert "r.jsonl:2" in refused(write(tmp_path / "r.jsonl", HEADER, row)), row
