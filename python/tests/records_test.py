"""read_records and write_records: what goes in comes out, in both forms, and numbers are where the tokens are."""
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import tandem_rl
from conftest import ROOT

NAN = float("nan")
HEADER = {"model": "nobody/model", "vocab_size": 100, "behaviour": {"engine": "vllm", "temperature": 0.7},
          "proximal": {"engine": "fsdp", "policy": "proximal"}}
ROWS = [
    {"token_ids": [1, 40, 7, 50, 2], "prompt_length": 2, "behaviour_logprobs": [None, None, -0.41, -1.73, -0.02],
     "proximal_logprobs": [None, None, -0.4, -1.75, -0.02], "weight_version": 12, "step": 13, "group_id": 4,
     "row_id": "first", "finish_reason": "stop", "stop_token_kept": True, "reward": 1.0, "advantage": -0.5},
    {"token_ids": [1, 9, 8, 6], "loss_mask": [0, 1, 0, 1], "behaviour_logprobs": [None, -0.5, None, "-Infinity"],
     "proximal_logprobs": [-3.25, -0.5, "NaN", 0.0], "behaviour_top_ids": [None, [9, 3], [], [6]],
     "behaviour_top_logprobs": [None, [-0.5, -0.9], [], [0.0]], "version_spans": [[12, 1], [13, 1]], "group_id": "g"},
    {"token_ids": [3, 2], "prompt_length": 0, "proximal_logprobs": [-4.5, -0.125], "behaviour_entropy": [1.5, 0.25]}]


@pytest.fixture(params=["records.jsonl", "records.parquet"])
def path(request, tmp_path):
    return tmp_path / request.param


def same(a, b):
    assert a.header == b.header and a.rows == b.rows and a.columns.keys() == b.columns.keys()
    for one, other in [(a.token_ids, b.token_ids), (a.offsets, b.offsets), (a.drawn, b.drawn),
                       *((a.columns[name], b.columns[name]) for name in a.columns)]:
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    for side, top in a.tops.items():
        np.testing.assert_array_equal(top.offsets, b.tops[side].offsets)
        np.testing.assert_array_equal(top.logprobs, b.tops[side].logprobs)


def test_rows_come_back_as_arrays(path):
    tandem_rl.write_records(path, HEADER, ROWS)
    records = tandem_rl.read_records(path)
    assert records.header == {"tandem_capture": 3, **HEADER} and len(records) == 3
    assert records.token_ids.tolist() == [1, 40, 7, 50, 2, 1, 9, 8, 6, 3, 2]
    assert records.drawn.tolist() == [0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1]
    assert records.rows[0] == tandem_rl.RowFacts(
        row_id="first", group_id="4", finish_reason="stop", stop_token_kept=True, reward=1.0, advantage=-0.5, step=13,
        spans=((12, 3),))
    assert records.rows[1].spans == ((12, 1), (13, 1)) and records.rows[2].spans == ()
    np.testing.assert_array_equal(records.column("behaviour_logprobs")[records.slice_of(1)],
                                  np.array([NAN, -0.5, NAN, -np.inf], np.float32))
    assert records.num_given == {"behaviour_logprobs": 5, "proximal_logprobs": 9, "behaviour_entropy": 2}
    assert np.isnan(records.column("reference_logprobs")).all()
    top = records.tops["behaviour"]
    assert top.offsets.tolist() == [0] * 7 + [2, 2, 3, 3, 3] and top.ids.tolist() == [9, 3, 6]
    with pytest.raises(KeyError, match="expected one of behaviour_logprobs"):
        records.column("logprobs")


def test_delta_is_of_drawn_tokens_that_both_sides_have(path):
    tandem_rl.write_records(path, HEADER, ROWS)
    delta = tandem_rl.read_records(path).delta
    np.testing.assert_allclose(delta, [NAN, NAN, .01, -.02, 0, NAN, 0, NAN, np.inf, NAN, NAN], atol=1e-7)


def test_what_was_read_is_written_back(path, tmp_path):
    tandem_rl.write_records(path, HEADER, ROWS)
    records = tandem_rl.read_records(path)
    for name in ("again.jsonl", "again.parquet"):
        tandem_rl.write_records(tmp_path / name, records.header, records.as_rows())
        again = tandem_rl.read_records(tmp_path / name)
        same(records, again)


def test_both_forms_hold_the_same(tmp_path):
    for name in ("a.jsonl", "a.parquet"):
        tandem_rl.write_records(tmp_path / name, HEADER, ROWS)
    same(tandem_rl.read_records(tmp_path / "a.jsonl"), tandem_rl.read_records(tmp_path / "a.parquet"))


def test_a_float32_keeps_its_bits(path):
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32) * 1e-3
    tandem_rl.write_records(path, {}, [{"token_ids": np.arange(1000), "prompt_length": 0, "behaviour_logprobs": values}])
    assert tandem_rl.read_records(path).columns["behaviour_logprobs"].tobytes() == values.tobytes()


def test_pandas_has_a_line_for_every_token(path):
    tandem_rl.write_records(path, HEADER, ROWS)
    records = tandem_rl.read_records(path)
    frame = records.to_pandas()
    assert len(frame) == 11 and frame.row.tolist() == [0] * 5 + [1] * 4 + [2] * 2
    assert frame.position.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1]
    np.testing.assert_array_equal(frame.weight_version, [NAN, NAN, 12, 12, 12, NAN, 12, NAN, 13, NAN, NAN])
    np.testing.assert_array_equal(frame.delta, records.delta)
    assert frame.group_id.tolist()[:6] == ["4"] * 5 + ["g"]


def test_rows_are_written_while_more_are_made(path):
    written = []

    def rows():
        for number in range(3000):
            unfinished = list(path.parent.glob(".records*"))
            written.append(unfinished[0].stat().st_size if unfinished else 0)
            yield {"token_ids": [number], "prompt_length": 0, "proximal_logprobs": [-1.0]}
    tandem_rl.write_records(path, {}, rows())
    assert 0 < written[1500] < written[-1]
    assert tandem_rl.read_records(path).token_ids.tolist() == list(range(3000))


def test_a_file_appears_whole_or_not_at_all(path):
    rows = [*ROWS, {"token_ids": []}]
    with pytest.raises(tandem_rl.RecordsError, match=r"row 3: token_ids: expected the ids of the row's tokens, found none"):
        tandem_rl.write_records(path, HEADER, rows)
    assert list(path.parent.iterdir()) == []


def test_a_row_that_parquet_cannot_hold_is_refused(tmp_path):
    with pytest.raises(tandem_rl.RecordsError, match="row 0: extra: expected in JSON lines only"):
        tandem_rl.write_records(tmp_path / "a.parquet", HEADER, [{**ROWS[2], "extra": {"note": 1}}])


def test_the_examples_of_the_pages_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for page in ("docs/records.md", "docs/python.md"):  # the second reads what the first writes
        exec(re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1], {})
    assert "1 rows, 3 drawn tokens" in capsys.readouterr().out
    records = tandem_rl.read_records("records.jsonl")
    assert records.rows[0].spans == ((12, 3),) and records.header["behaviour"]["engine"] == "vllm"


def test_the_import_needs_numpy_alone():
    def imported(statement):
        code = f"import sys, json; {statement}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
        return json.loads(subprocess.run([sys.executable, "-c", code], cwd=ROOT / "python", check=True, text=True,
                                         capture_output=True).stdout)
    assert "numpy" not in imported("import tandem_rl.rewards.worker"), "rewards need the standard library alone"
    found = imported("from tandem_rl import read_records, write_records, Records, RecordsError")
    assert "numpy" in found
    assert not {"torch", "pandas", "pyarrow", "transformers", "trl", "verl", "xxhash", "matplotlib"} & set(found)
