"""`tandem drift sensitivity` beside what `tandem score` says of the same tokens with the same matrices quantised."""
import json
import math
import os
import pathlib
import sys

import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "parity"))
from engine_parity_test import random_ids, tandem  # noqa: E402
from forked_tandem import forked_tandem  # noqa: E402
from make_models import make_model  # noqa: E402

SITES = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sensitivity") / "model"
    model = make_model("llama", directory, seed=5)
    lines = [{"ids": ids, "num_prompt_tokens": 4} for ids in random_ids(14, 60, model.config.vocab_size) if len(ids) > 5]
    return directory, model.config.num_hidden_layers, lines


def study(directory, lines, *flags):
    return forked_tandem("drift", "sensitivity", "-", "--model", directory, "--json", *flags,
                         text="".join(json.dumps(line) + "\n" for line in lines))


def k3(wide, quantised):
    log_w = [a - b for one, other in zip(wide, quantised) for a, b in zip(one["logprobs"], other["logprobs"]) if a is not None]
    return sum(math.expm1(x) - x for x in log_w) / len(log_w)


def test_every_place_costs_what_scores_with_that_matrix_quantised_show(made):
    directory, num_layers, lines = made
    done = study(directory, lines, "--weight-format", "int4_group")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["place"] for one in found["places"]] == [f"{layer}.{site}" for layer in range(num_layers) for site in SITES] + ["head"]
    common = ["--model", directory, "--path", "prefill"]
    wide = tandem("score", *common, lines=lines)
    for place, scheme in (("0.down_proj", "int4_group"), ("1.qkv_proj", "int4_group"), ("head", "int8")):
        quantised = tandem("score", *common, "--weights-by-layer", f"{place}={scheme}", lines=lines)
        one = next(one for one in found["places"] if one["place"] == place)
        assert one["format"] == scheme
        assert one["k3"]["value"] == pytest.approx(k3(wide, quantised), rel=1e-4)
    whole = tandem("score", *common, "--weight-format", "int4_group", lines=lines)
    assert found["whole"]["k3"]["value"] == pytest.approx(k3(wide, whole), rel=1e-4)


def test_the_plan_keeps_within_its_budget_and_its_run_file_gives_what_was_measured(made):
    directory, _, lines = made
    budget = json.loads(study(directory, lines, "--weight-format", "int4_group").stdout)["whole"]["k3"]["value"] / 3
    found = json.loads(study(directory, lines, "--weight-format", "int4_group", "--budget", str(budget)).stdout)
    plan = found["plan"]
    assert 0 < len(plan["quantised"]) < len(found["places"])
    assert plan["measured_k3"] <= budget
    assert plan["bytes"] < found["wide_bytes"]
    weights, exceptions = None, []
    for line in plan["run_file"].splitlines():
        key, _, value = line.strip().partition(": ")
        if key == "weights":
            weights = value
        elif value and line.startswith("      "):
            exceptions.append(f"{key}={value}")
    common = ["--model", directory, "--path", "prefill"]
    scored = tandem("score", *common, "--weight-format", weights, "--weights-by-layer", ",".join(exceptions), lines=lines)
    assert k3(tandem("score", *common, lines=lines), scored) == pytest.approx(plan["measured_k3"], rel=1e-4)


def test_errors_say_what_to_do(made):
    directory, _, lines = made
    done = study(directory, lines, "--weight-format", "dtype")
    assert done.returncode != 0 and "name a number format (--weight-format)" in done.stderr
    done = forked_tandem("drift", "sensitivity", "-", text=json.dumps(lines[0]) + "\n")
    assert done.returncode == 2 and "--model is needed" in done.stderr
    done = study(directory, [{"ids": [5, 6], "num_prompt_tokens": 2}])
    assert done.returncode == 3 and "want an integer from 0 to 1" in done.stderr
