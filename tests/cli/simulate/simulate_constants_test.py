"""tests/bench/simulate_constants.py: the constants that it computes from benchmark tables and a run."""
import importlib.util
import os
import pathlib

import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("simulate_constants",
                                                  SOURCE / "tests/bench/simulate_constants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rate(value):
    return {"tandem": {"tokens_per_second": {"median": value, "least": 0, "most": 1e9}}}


def test_rates_of_decoding_and_prompts_are_the_medians(script):
    cases = {f"decode-{batch}": {"decode": rate(10 * batch), "prefill": rate(1)}
             for batch in (1, 8, 32, 64)}
    cases["prefill-8"] = {"prefill": rate(900)}
    assert script.of_rollout({"cases": cases}) == {
        "decode_tokens_per_second_1": 10, "decode_tokens_per_second_8": 80,
        "decode_tokens_per_second_32": 320, "decode_tokens_per_second_64": 640,
        "prefill_tokens_per_second": 900}


def test_sending_is_of_dense_pushes_and_proving_of_deltas(script):
    def row(form, transport, servers, wire, send, verify, pack):
        return {"form": form, "transport": transport, "servers": servers, "wire_bytes": wire,
                "send_seconds": {"median": send}, "verify_seconds": {"median": verify},
                "pack_seconds": {"median": pack}}
    table = {"dense_bytes": 1000, "rows": [
        row("dense", "stream", 1, 1000, 2, 9, 9), row("delta", "stream", 1, 50, 9, 4, 5),
        row("dense", "stream", 2, 1, 1, 1, 1), row("delta", "collective", 1, 1, 1, 1, 1)]}
    assert script.of_push(table) == {"send_bytes_per_second": 500, "verify_bytes_per_second": 250,
                                     "pack_bytes_per_second": 200}


def test_training_and_the_cast_are_of_the_steps_after_the_first(script):
    def line(step, begin):
        return {"step": step, "time_s": begin + 2, "loss/num_tokens": 80,
                "push/dense_bytes": 1200, "push/seconds": 1, "time/rollout": 2, "time/update": 4,
                "time/push": 3, "time/step": 9}
    lines = [line(1, 0), line(2, 20), line(3, 29.5), line(4, 39)]
    assert script.of_run(lines, prompts=2, servers=2, prompt_tokens=20) == {
        "train_tokens_per_second": 30,   # (80 + 2 x 20) / 4
        "cast_bytes_per_second": 300,    # 1200 / 2 servers in 3 - 1 s
        "record_seconds": 0.5, "prompt_tokens": 20}
