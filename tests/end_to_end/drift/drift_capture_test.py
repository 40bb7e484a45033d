"""`tandem drift capture`: a capture from a running server alone, with and without an injected fault."""
import json
import subprocess

import pytest
import small_run

from rollout_client import Server


def drift(*arguments):
    done = subprocess.run([str(small_run.TANDEM), "drift", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120)
    return done.returncode, done.stdout + done.stderr


def capture(server, model, folder, *arguments, completions=4):
    prompts = small_run.write_prompts(folder / "prompts.jsonl")
    code, output = drift("capture", server.address, "--model", model, "--data", prompts, "--no-chat",
                         "--out", folder / "capture", "--groups", 8, "--group-size", completions, "--max-new-tokens", 16,
                         *arguments)
    assert code == 0, output
    return output


def attribute(folder, model):
    code, table = drift("attribute", folder / "capture", "--weights", model, "--json-out", folder / "result.json")
    assert code == 0, table
    return table, json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_honest_server_records_what_its_engine_computes(model, tmp_path, dtype):
    with Server(model, "--dtype", dtype) as server:
        output = capture(server, model, tmp_path, "--temperature", "0.8", "--top-p", "0.9")
    assert "32 completions" in output and "of version 0" in output
    table, result = attribute(tmp_path, model)
    (record,) = [part for part in result["parts"] if part["part"] == "record"]
    assert record["mean_abs_alone"]["value"] == 0, table
    assert "trainer_record" not in [part["part"] for part in result["parts"]], "no trainer recorded anything"
    assert result["injected"] == [] and "FAULT" not in table


def test_an_undisclosed_temperature_shows_in_the_record_and_is_named_loudly_as_injected(model, tmp_path):
    with Server(model, "--dtype", "fp32", "--set", "drift.inject.temperature=0.7") as server:
        assert "FAULT INJECTED" in capture(server, model, tmp_path)
    table, result = attribute(tmp_path, model)
    assert table.startswith("FAULTS WERE INJECTED") and "temperature" in result["injected"][0]
    (cause,) = result["verdict"]["named"]
    assert cause["cause"] == "temperature" and cause["strength"]["value"] == pytest.approx(0.7, rel=1e-4), table
    assert cause["square_share"]["low"] > 0.9


def test_a_sampler_that_records_what_it_claims_is_caught_by_its_calibration(model, tmp_path):
    with Server(model, "--dtype", "fp32", "--set", "drift.inject.temperature=0.7",
                "--set", "drift.inject.record=claimed") as server:
        capture(server, model, tmp_path, completions=40)
    table, result = attribute(tmp_path, model)
    assert result["total"]["mean_abs"]["value"] < 1e-5, "delta sees nothing"
    said = [cause["evidence"] for cause in result["verdict"]["named"]]
    said += [question["what"] for question in result["verdict"]["open"]]
    assert any("calibration z" in words for words in said), table


def test_what_cannot_be_captured_says_why(model, tmp_path):
    with Server(model) as server:
        capture(server, model, tmp_path)
        prompts = tmp_path / "prompts.jsonl"
        code, output = drift("capture", server.address, "--model", model, "--data", prompts, "--no-chat",
                             "--out", tmp_path / "capture")
        assert code == 2 and "exists" in output
        other = small_run.make_model(tmp_path / "other", "--vocab-size", "400")
        code, output = drift("capture", server.address, "--model", other, "--data", prompts, "--no-chat",
                             "--out", tmp_path / "again")
        assert code != 0 and "name the model it was started with" in output
    code, output = drift("capture", "127.0.0.1:1", "--model", model, "--data", prompts, "--no-chat", "--out",
                         tmp_path / "gone")
    assert code == 4 and "127.0.0.1:1" in output
    assert not (tmp_path / "gone").exists()
