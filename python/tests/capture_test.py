"""Captures of formats 1, 2 and 4, as Tandem's runs write them: the columns, the manifest and the faults."""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import safetensors.numpy
import xxhash

import tandem_rl
from conftest import ROOT
from tandem_rl.capture import read_safetensors

TANDEM = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build/release/bin")) / "tandem"
NAN = float("nan")


def columns_of(version):
    """Two groups; three completions of two, one and two tokens, of which the last is masked."""
    per_token = np.arange(5, dtype=np.float32)
    columns = {
        "group_id": np.array([4, 5]), "prompt_ids": np.array([1, 2, 3], np.int32), "prompt_offsets": np.array([0, 2, 3]),
        "group": np.array([0, 0, 1], np.int32), "completion_index": np.array([0, 1, 0], np.int32),
        "token_offsets": np.array([0, 2, 3, 5]), "reward": np.array([1, 0, .5]), "masked": np.array([0, 0, 1], np.uint8),
        "finish": np.array([1, 2, 4], np.uint8), "token_hash": np.array([5, 6, 7]), "seed": np.array([1, 2, 3]),
        "token_ids": np.array([7, 8, 9, 7, 7], np.int32), "behaviour_logprobs": -1 - per_token, "raw_logprobs": -2 - per_token,
        "proximal_logprobs": np.array([-1, -2.5, NAN, -4, -5], np.float32), "entropies": per_token,
        "logprob_second_moments": per_token, "kept_mass": per_token, "advantages": per_token,
        "weight_version": np.array([12, 13, 13, 13, 13]), "decode_batch_size": np.ones(5, np.int32),
        "prefix_cached": np.zeros(5, np.uint8)}
    supports = {1: {"support_ids": np.empty(0, np.int32), "support_offsets": np.zeros(6, np.int64)},
                2: {"packed_support": np.empty(0, np.uint8), "packed_support_offsets": np.zeros(6, np.int64)}}
    return {**columns, **supports[min(version, 2)]}


def write_capture(path, version, **changes):
    path.mkdir()
    file = path / "tensors.safetensors"
    columns = {name: values for name, values in {**columns_of(version), **changes}.items() if values is not None}
    safetensors.numpy.save_file(columns, file)
    manifest = {"format": "tandem-capture", "format_version": version, "created_at": "2026-11-01T00:00:00Z",
                "tandem_version": "0.1.0", "source": "run", "run_id": "r", "step": 12, "proximal_version": 13,
                "model": {"path": "models/small", "type": "llama", "config_digest": "", "tokenizer_hash": ""},
                "sampling": {"temperature": .8, "top_k": 0, "top_p": 1, "min_p": 0, "min_new_tokens": 0, "max_new_tokens": 8},
                "servers": [], "weights": [], "injected": [],
                "trainer": {"dtype": "bf16", "numerics": "", "instruction_set": "", "library": "", "row_tokens": 0},
                "columns_digest": xxhash.xxh3_128_hexdigest(file.read_bytes())}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_a_capture_becomes_rows_with_their_prompts(tmp_path, version):
    records = tandem_rl.read_records(write_capture(tmp_path / "capture", version))
    assert records.offsets.tolist() == [0, 4, 7, 10]
    assert records.token_ids.tolist() == [1, 2, 7, 8, 1, 2, 9, 3, 7, 7]
    assert records.drawn.tolist() == [0, 0, 1, 1, 0, 0, 1, 0, 0, 0]
    np.testing.assert_array_equal(records.columns["behaviour_logprobs"], [NAN, NAN, -1, -2, NAN, NAN, -3, NAN, -4, -5])
    np.testing.assert_array_equal(records.delta, [NAN, NAN, 0, -.5, *[NAN] * 6])
    assert [facts.group_id for facts in records.rows] == ["4", "4", "5"]
    assert [facts.finish_reason for facts in records.rows] == ["stop", "length", "stopped early"]
    assert records.rows[0].spans == ((12, 1), (13, 1)) and records.rows[1].spans == ((13, 1),)
    assert records.header["behaviour"]["temperature"] == .8 and records.header["proximal"]["dtype"] == "bf16"
    assert records.num_given["proximal_logprobs"] == 4


def test_given_tokens_of_a_capture_are_not_drawn(tmp_path):
    """One completion of five tokens: two turns with a given token between them."""
    changes = {"group": np.array([0], np.int32), "completion_index": np.array([0], np.int32), "token_offsets": np.array([0, 5]),
               "reward": np.ones(1), "masked": np.zeros(1, np.uint8), "finish": np.ones(1, np.uint8),
               "token_hash": np.array([5]), "seed": np.array([1]), "turn": np.array([1, 1, 0, 2, 2], np.int32),
               "behaviour_logprobs": np.array([-1, -2, NAN, -4, -5], np.float32)}
    records = tandem_rl.read_records(write_capture(tmp_path / "capture", 4, **changes))
    assert records.drawn.tolist() == [0, 0, 1, 1, 0, 1, 1]
    assert records.turn.tolist() == [0, 0, 1, 1, 0, 2, 2]
    assert records.rows[0].spans == ((12, 1), (13, 3))
    assert records.num_given["behaviour_logprobs"] == 4
    np.testing.assert_array_equal(np.isnan(records.delta), [1, 1, 0, 0, 1, 0, 0])


@pytest.mark.parametrize("version", [1, 2])
def test_a_capture_is_written_as_a_file_of_format_3(tmp_path, version):
    capture = write_capture(tmp_path / "capture", version)
    records = tandem_rl.read_records(capture)
    tandem_rl.write_records(tmp_path / "records.jsonl", records.header, records.as_rows())
    again = tandem_rl.read_records(tmp_path / "records.jsonl")
    np.testing.assert_array_equal(again.delta, records.delta)
    counts = [json.loads(subprocess.run([TANDEM, "drift", "check", path, "--json"], check=True, capture_output=True).stdout)
              for path in (capture, tmp_path / "records.jsonl")]
    assert counts[0]["format"] == version and counts[1]["rows"] == 3 and counts[1]["drawn_tokens"] == 3


def test_a_fault_of_a_capture_is_named(tmp_path):
    def refused(name, **changes):
        with pytest.raises(tandem_rl.RecordsError) as error:
            tandem_rl.read_records(write_capture(tmp_path / name, 2, **changes))
        return str(error.value)
    assert "column entropies is missing" in refused("a", entropies=None)
    assert "column reward must be F64 of one dimension" in refused("b", reward=np.zeros(3, np.float32))
    assert "column token_offsets does not rise from 0 to 5 in 4 entries" in refused("c", token_offsets=np.array([0, 3, 2, 5]))
    assert "column advantages: expected 5 elements, found 4" in refused("d", advantages=np.zeros(4, np.float32))
    capture = write_capture(tmp_path / "e", 2)
    manifest = json.loads((capture / "manifest.json").read_text())
    (capture / "manifest.json").write_text(json.dumps({**manifest, "format_version": 9}))
    with pytest.raises(tandem_rl.RecordsError, match="format_version 9, this program reads 1, 2 and 4"):
        tandem_rl.read_records(capture)
    (capture / "manifest.json").write_text(json.dumps({**manifest, "columns_digest": "00"}))
    with pytest.raises(tandem_rl.RecordsError, match="cut short or changed"):
        tandem_rl.read_records(capture)
    (capture / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="its writing did not end"):
        tandem_rl.read_records(capture)


def test_safetensors_are_read_as_the_library_reads_them(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"a": rng.standard_normal((3, 4)).astype(np.float32), "b": rng.integers(0, 9, 5).astype(np.int16),
              "c": np.array(2.5), "d": np.empty((0, 3), np.uint8), "e": rng.standard_normal(6).astype(np.float16),
              "f": np.array([True, False])}
    file = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(arrays, file, metadata={"of": "nothing"})
    read = read_safetensors(file)
    assert read.keys() == arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(read[name], values)
        assert read[name].dtype == values.dtype and read[name].shape == values.shape
    data = file.read_bytes()
    for size in (0, 7, 40, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(tandem_rl.RecordsError, match="expected"):
            read_safetensors(file)
