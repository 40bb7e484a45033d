"""The package and `tandem drift check` read the same files, count the same and refuse the same with the same sentences."""
import json
import os
import pathlib
import re
import subprocess

import numpy as np
import pytest

import tandem_rl
from conftest import ROOT

TANDEM = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build/release/bin")) / "tandem"
HEADER = '{"tandem_capture": 3, "vocab_size": 100}'
IDS, DRAWN, LOGPROBS = '"token_ids": [1, 2, 3]', '"prompt_length": 2', '"proximal_logprobs": [null, null, -1]'


def row(*parts):
    return f"{HEADER}\n{{{', '.join(parts)}}}\n"


def full(*parts):
    return row(IDS, DRAWN, LOGPROBS, *parts)


# Files that are refused, by what is wrong with them.
FAULTS = {
    "empty": "", "blank": "\n\n", "array": "[]\n", "gzip": "\x1f\x8b", "no header": '{"model": "m"}\n',
    "format": '{"tandem_capture": 2}\n', "format text": '{"tandem_capture": "3"}\n', "header list": "3\n",
    "header field": '{"tandem_capture": 3, "modle": "m"}\n', "header vocab": '{"tandem_capture": 3, "vocab_size": 0}\n',
    "header ids": '{"tandem_capture": 3, "eos_token_ids": [1.5]}\n', "header eos": '{"tandem_capture": 3, "eos_token_ids": 2}\n',
    "large eos": '{"tandem_capture": 3, "eos_token_ids": [2147483648]}\n',
    "side": '{"tandem_capture": 3, "behaviour": "vllm"}\n',
    "side field": '{"tandem_capture": 3, "behaviour": {"temprature": 1}}\n',
    "side number": '{"tandem_capture": 3, "behaviour": {"temperature": "0.7"}}\n',
    "side nan": '{"tandem_capture": 3, "behaviour": {"temperature": NaN}}\n',
    "share": '{"tandem_capture": 3, "behaviour": {"top_p": 1.5}}\n',
    "top k": '{"tandem_capture": 3, "behaviour": {"top_k": 1.5}}\n',
    "penalty": '{"tandem_capture": 3, "behaviour": {"repetition_penalty": 0}}\n',
    "policy": '{"tandem_capture": 3, "proximal": {"policy": "old"}}\n',
    "policy of behaviour": '{"tandem_capture": 3, "behaviour": {"policy": "proximal"}}\n',
    "origin": '{"tandem_capture": 3, "columns": {"advantages": {"from": 1}}}\n',
    "origin of": '{"tandem_capture": 3, "columns": {"advantage_s": {"from": "a"}}}\n',
    "extra text": '{"tandem_capture": 3, "extra": "a"}\n',
    "row list": f"{HEADER}\n[1]\n", "no ids": row(DRAWN, LOGPROBS), "null ids": row('"token_ids": null'),
    "half an id": row('"token_ids": [1, 2.5]'), "large id": row('"token_ids": [4294967296]'),
    "id of the vocabulary": row('"token_ids": [1, 2, 100]', DRAWN, LOGPROBS),
    "negative id": row('"token_ids": [-1, 2, 3]', DRAWN, LOGPROBS), "neither": row(IDS, LOGPROBS),
    "no log-probs": row(IDS, DRAWN), "long prompt": row(IDS, '"prompt_length": 4', LOGPROBS),
    "negative prompt": row(IDS, '"prompt_length": -1', LOGPROBS), "short mask": row(IDS, '"loss_mask": [0, 1]', LOGPROBS),
    "mask of 2": row(IDS, '"loss_mask": [0, 2, 1]', LOGPROBS), "mask text": row(IDS, '"loss_mask": [0, "1", 1]', LOGPROBS),
    "prompt drawn": full('"loss_mask": [0, 1, 1]'), "short column": row(IDS, DRAWN, '"proximal_logprobs": [-1, -2]'),
    "empty column": row(IDS, DRAWN, '"proximal_logprobs": []'), "empty mask": full('"loss_mask": []'),
    "text number": row(IDS, DRAWN, '"proximal_logprobs": [null, "-1", -1]'),
    "bool number": row(IDS, DRAWN, '"proximal_logprobs": [null, true, -1]'),
    "number for a list": row(IDS, DRAWN, '"proximal_logprobs": -1'),
    "both advantages": full('"advantage": 1', '"advantages": [1, 1, 1]'),
    "spans sum": row(IDS, '"prompt_length": 1', LOGPROBS, '"version_spans": [[1, 1]]'), "empty span": full('"version_spans": [[1, 0], [2, 1]]'),
    "span object": full('"version_spans": [{"version": 1}]'), "version": full('"version_spans": [[1, 1]]', '"weight_version": 2'),
    "top ids alone": full('"behaviour_top_ids": [[1], [1], [1]]'),
    "top log-probs alone": full('"proximal_top_logprobs": [[-1], [-1], [-1]]'),
    "top length": full('"behaviour_top_ids": [[1], [1]]', '"behaviour_top_logprobs": [[-1], [-1]]'),
    "top uneven": full('"behaviour_top_ids": [[1], [1], [1, 2]]', '"behaviour_top_logprobs": [[-1], [-1], [-1]]'),
    "top id": full('"behaviour_top_ids": [[1], [1], [100]]', '"behaviour_top_logprobs": [[-1], [-1], [-1]]'),
    "step text": full('"step": "3"'), "step bool": full('"step": true'), "row id": full('"row_id": 7'),
    "group": full('"group_id": 1.5'), "kept": full('"stop_token_kept": 1'), "extra": full('"extra": 1'),
    "reward": full('"reward": "much"'), "twice": full('"step": 1', '"step": 1'),
    "named row": full('"row_id": "r7"', '"reward": "much"'), "unknown": full('"anything": 1'), "misspelt": full('"rewrad": 1'),
    "foreign name": full('"rollout_log_probs": [0, 0, 0]'), "foreign ids": full('"input_ids": [0, 0, 0]'),
    "second row": full() + '{"token_ids": [1]}\n'}


def plain(text):
    """Without the place in the line, which the package does not know, and spaces in what was found."""
    return re.sub(r" at (byte|element) \d+", "", text).replace(": ", ":").replace(", ", ",")


def checked(path, *flags):
    return subprocess.run([TANDEM, "drift", "check", str(path), *flags], text=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_files_are_refused_with_the_same_sentence(tmp_path, fault):
    path = tmp_path / "records.jsonl"
    path.write_bytes(FAULTS[fault].encode("latin-1"))
    done = checked(path)
    assert done.returncode == 3, done.stdout
    with pytest.raises(tandem_rl.RecordsError) as error:
        tandem_rl.read_records(path)
    said = plain(str(error.value))
    assert said.startswith(str(path)) and len(said) > len(str(path)) + 20
    assert said in plain(done.stderr)


@pytest.mark.parametrize("name", ["records.jsonl", "records.parquet"])
def test_what_the_package_writes_the_program_reads(tmp_path, name):
    rng = np.random.default_rng(3)

    def rows():
        for number in range(300):
            behaviour = np.log(rng.uniform(.05, 1, 40)).astype(np.float32)
            behaviour[:8] = np.nan
            yield {"token_ids": rng.integers(0, 100, 40), "prompt_length": 8, "behaviour_logprobs": behaviour,
                   "proximal_logprobs": behaviour + np.float32(1e-3), "weight_version": number // 50, "reward": 1.0,
                   "behaviour_top_ids": [[1, 2]] * 40, "behaviour_top_logprobs": [[-.5, -1.5]] * 40}
    path = tmp_path / name
    tandem_rl.write_records(path, {"vocab_size": 100, "eos_token_ids": [2]}, rows())
    done = checked(path, "--json")
    assert done.returncode == 0, done.stderr
    said, records = json.loads(done.stdout), tandem_rl.read_records(path)
    assert (said["rows"], said["tokens"], said["drawn_tokens"]) == (300, 12000, 9600)
    assert said["rows_with_versions"] == sum(bool(facts.spans) for facts in records.rows)
    given = {column["name"]: column["values"] for column in said["columns"]}
    assert {column: given[column] for column in records.num_given} == records.num_given
    assert len(records.tops["behaviour"].ids) == 24000


@pytest.mark.parametrize("name", ["records.jsonl", "records.parquet"])
def test_the_example_of_the_repository_is_read_alike(name):
    path = ROOT / "tests/testdata/foreign/format3" / name
    said, records = json.loads(checked(path, "--json").stdout), tandem_rl.read_records(path)
    assert (said["rows"], said["tokens"], said["drawn_tokens"]) == (3, 13, records.drawn.sum())
    assert said["header"] == records.header
    assert {column["name"]: column["values"] for column in said["columns"] if "top" not in column["name"]} == records.num_given
