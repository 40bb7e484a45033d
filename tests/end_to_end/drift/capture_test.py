"""Captures of a run, read as docs/run_directory.md describes, and servers that are exactly k versions behind."""
import json
import re

import numpy as np
import pytest
import small_run
import xxhash
from safetensors.numpy import load_file


def documented(name):
    """A function from docs/run_directory.md."""
    page = (small_run.SOURCE / "docs" / "run_directory.md").read_text(encoding="utf-8")
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if f"def {name}(" in code)
    names = {}
    exec(compile(code, "docs/run_directory.md", "exec"), names)  # pylint: disable=exec-used
    body = code[code.index("def "):]
    assert len(body.splitlines()) <= 25
    return names[name]


@pytest.mark.parametrize("packed, ids", [
    ([1, 3, 0, 4, 0xc2, 0x01], [0, 5, 200]),
    ([2, 101, 10, 99, 0x86, 0x03, 0], [*range(10, 110), 500]),
    ([3, 16, 3, 0x55, 0x55, 0x55, 0x55], [*range(3, 34, 2)])], ids=["gaps", "runs", "bitmap"])
def test_the_documented_reader_of_supports_gives_the_ids_of_each_coding(packed, ids):
    """The bytes are those of tests/common/model/token_support_test.cc."""
    assert documented("unpack_support")(np.array(packed, np.uint8)).tolist() == ids


@pytest.fixture(scope="module")
def captured(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured")
    config = small_run.write_config(folder, model, steps=4, capture={"every": 2})
    code, output = small_run.run(config)
    assert code == 0, output
    return folder


def test_the_documented_reader_finds_every_token_of_the_step(captured):
    captures = captured / "runs" / "small" / "captures"
    assert sorted(path.name for path in captures.iterdir()) == ["step_2", "step_4", "weights"]
    manifest, completions = documented("read_capture")(captures / "step_4")
    assert manifest["source"] == "run" and manifest["step"] == 4 and manifest["proximal_version"] == 3
    assert manifest["injected"] == []
    assert manifest["servers"][0]["dtype"] == "fp32"
    groups = small_run.rollouts(captured, 4)
    expected = [(group["group_id"], completion) for group in groups for completion in group["completions"]]
    assert len(completions) == len(expected) == 16
    for found, (group_id, completion) in zip(completions, expected):
        assert found["group_id"] == group_id
        assert found["reward"] == completion["reward"]
        assert found["token_ids"].tolist() == completion["token_ids"]
        delta = np.float32(completion["proximal_logprobs"]) - np.float32(completion["behaviour_logprobs"])
        np.testing.assert_allclose(found["delta"], delta, atol=1e-7)


def test_the_weights_beside_it_are_those_the_server_was_proven_to_run(captured):
    captures = captured / "runs" / "small" / "captures"
    manifest = json.loads((captures / "step_4" / "manifest.json").read_text())
    # Also the previous version, which a server that missed a push would have.
    assert [weights["version"] for weights in manifest["weights"]] == [2, 3]
    for weights in manifest["weights"]:
        assert weights["rounding"] == "none"
        masters = load_file(captures / "step_4" / weights["masters"])
        assert masters.keys() == weights["served"].keys()
        for name, tensor in masters.items():
            assert xxhash.xxh3_128_hexdigest(tensor.tobytes()) == weights["served"][name], name


def test_capturing_is_timed_and_an_event(captured):
    steps = small_run.steps(captured)
    assert ["time/capture" in step for step in steps] == [False, True, False, True]
    assert len(small_run.events(captured, "capture_written")) == 2


def test_older_captures_go_with_their_weights_when_few_are_kept(model, tmp_path):
    config = small_run.write_config(tmp_path, model, capture={"every": 1, "keep": 1})
    code, output = small_run.run(config)
    assert code == 0, output
    captures = tmp_path / "runs" / "small" / "captures"
    assert sorted(path.name for path in captures.iterdir()) == ["step_3", "weights"]
    assert {path.name for path in (captures / "weights").iterdir()} == {"v_1.safetensors", "v_2.safetensors"}


def test_a_capture_that_cannot_be_written_is_an_event_and_the_run_goes_on(model, tmp_path, monkeypatch):
    monkeypatch.setenv("TANDEM_FAIL_WRITE", "captures/step_2:ENOSPC:10")
    config = small_run.write_config(tmp_path, model, capture={"every": 1})
    code, output = small_run.run(config)
    assert code == 0, output
    captures = tmp_path / "runs" / "small" / "captures"
    assert {path.name for path in captures.iterdir()} == {"step_1", "step_3", "weights"}
    (failed,) = small_run.events(tmp_path, "capture_failed")
    assert "step_2" in failed["message"]


def test_servers_held_back_by_two_versions_are_so_at_every_token_and_every_time(model, tmp_path):
    lines = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        config = small_run.write_config(tmp_path / name, model, steps=5, max_staleness=2, deterministic=True,
                                        push={"hold_back_versions": 2}, capture={"every": 5})
        code, output = small_run.run(config)
        assert code == 0, output
        lines.append(small_run.steps(tmp_path / name))
    for mine, again in zip(*lines):
        lag = min(mine["step"] - 1, 2)
        assert mine["staleness/mean"] == mine["staleness/max"] == lag
        assert mine["push/version"] == max(0, mine["step"] - 2)
        assert mine["loss/total"] == again["loss/total"]
        assert list(mine["drift/by_version_lag"]) == [str(lag)]
    manifest = json.loads((tmp_path / "first/runs/small/captures/step_5/manifest.json").read_text())
    assert [weights["version"] for weights in manifest["weights"]] == [1, 2, 3, 4]
    assert [bool(weights["served"]) for weights in manifest["weights"]] == [True, True, False, False]
    assert all(weights["masters"] for weights in manifest["weights"])


def test_holding_back_further_than_staleness_allows_is_refused(model, tmp_path):
    config = small_run.write_config(tmp_path, model, push={"hold_back_versions": 1})
    code, output = small_run.run(config)
    assert code == 2, output
    assert "hold_back_versions is over trainer.max_staleness" in output
