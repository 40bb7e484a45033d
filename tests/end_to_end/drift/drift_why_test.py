"""`tandem drift why` on small runs whose ratios differ from 1 for one known reason each, and on one without a reason."""
import json
import shutil
import subprocess

import pytest
import small_run
import torch
import xxhash
from safetensors.numpy import load_file, save_file


def finished_run(folder, model, *arguments, engine=None, inject=None, steps=2, capture=True, **trainer):
    """The directory of a run whose last step was captured."""
    path = small_run.write_config(folder, model, steps=steps, deterministic=True,
                                  **({"capture": {"every": steps}} if capture else {}), **trainer)
    config = json.loads(path.read_text())
    config["server"]["engine"].update(engine or {})
    if inject:
        config["drift"] = {"inject": inject}
    path.write_text(json.dumps(config))
    code, output = small_run.run(path, *arguments)
    assert code == 0, output
    return folder / "runs" / "small"


def why(path, *arguments):
    """(exit code, output, JSON or None)."""
    out = path.parent / "why.json"
    out.unlink(missing_ok=True)
    done = subprocess.run([str(small_run.TANDEM), "drift", "why", str(path), "--json-out", str(out), *arguments],
                          capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else None


def findings(result):
    return {experiment["experiment"]: experiment["finding"] for experiment in result["experiments"]}


def that_are_it(result):
    return {name for name, finding in findings(result).items() if finding == "is it"}


@pytest.fixture(scope="module")
def exact(model, tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("exact"), model, "--numerics", "exact")


@pytest.fixture(scope="module")
def cool(model, tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("cool"), model, sampling={"temperature": 0.8, "max_new_tokens": 12})


def test_a_healthy_exact_run_is_told_that_both_ratios_are_1_and_no_experiment_is_it(exact):
    code, output, result = why(exact)
    assert code == 0, output
    first, second = output.splitlines()[:2]
    assert first == "pi/mu is exactly 1 for every token: trainer and server agree bit for bit."
    assert second.startswith("target/proximal is 1: one update a step")
    assert result["pi_over_mu"]["state"] == result["target_over_proximal"]["state"] == "one"
    assert set(findings(result).values()) == {"is not"}
    assert "what to do" not in output, "nothing is to be done"


def test_a_run_whose_servers_are_held_back_is_told_of_lagged_weights(model, tmp_path):
    run = finished_run(tmp_path, model, steps=4, max_staleness=2, push={"hold_back_versions": 2}, prompts_per_step=8)
    code, output, result = why(run)
    assert code == 0, output
    assert "lagged weights, drawn 2 versions before the step's" in output.split("target/proximal")[0]
    assert that_are_it(result) == {"weights"}
    (weights,) = [e for e in result["experiments"] if e["experiment"] == "weights"]
    assert weights["square_share"] > 0.9 and "hold_back_versions" in weights["to_do"]
    assert result["target_over_proximal"]["state"] == "one"


def test_a_bf16_server_under_an_fp32_trainer_is_told_of_precision_and_cast(model, tmp_path):
    code, output, result = why(finished_run(tmp_path, model, engine={"dtype": "bf16"}, prompts_per_step=24))
    assert code == 0, output
    assert {"cast", "precision"} <= that_are_it(result) <= {"cast", "precision", "kernels"}
    assert result["pi_over_mu"]["state"] == "not_one" and "precision: the engine rounds" in result["answer"]
    assert findings(result)["weights"] == findings(result)["record"] == findings(result)["temperature"] == "is not"


def test_a_server_that_quantises_is_told_of_its_number_formats(model, tmp_path):
    run = finished_run(tmp_path, model, engine={"weights": "int8", "kv": "int8"}, prompts_per_step=24)
    code, output, result = why(run)
    assert code == 0, output
    assert that_are_it(result) - {"kernels"} == {"formats"}
    assert "number formats: weights or KV are quantised on the server and not in the trainer" in result["pi_over_mu"]["answer"]
    (formats,) = [e for e in result["experiments"] if e["experiment"] == "formats"]
    assert formats["square_share"] > 0.9 and "tandem drift sensitivity" in formats["to_do"]


def test_a_temperature_the_server_did_not_disclose_is_named_with_its_value(model, tmp_path):
    code, output, result = why(finished_run(tmp_path, model, inject={"temperature": 0.9}, prompts_per_step=8))
    assert code == 0, output
    assert "a temperature the server did not disclose (temperature 0.9 times the claimed one)" in result["pi_over_mu"]["answer"]
    assert that_are_it(result) == {"record"}
    assert "FAULT INJECTED" in output and result["injected"]


@pytest.mark.parametrize("minibatches, epochs", [(4, 1), (1, 3)])
def test_a_run_with_several_updates_a_step_is_told_of_the_later_ones(model, tmp_path, minibatches, epochs):
    run = finished_run(tmp_path, model, num_minibatches=minibatches, num_epochs=epochs, prompts_per_step=8)
    code, output, result = why(run)
    assert code == 0, output
    assert that_are_it(result) - {"kernels"} == {"later updates"}
    assert f"later minibatches: {minibatches * epochs} updates a step" in result["target_over_proximal"]["answer"]
    assert findings(result)["first update"] == "is not", "the pass of an update gives the proximal log-probs"


def test_bypass_mode_is_told_that_its_ratio_holds_the_whole_gap(model, tmp_path):
    run = finished_run(tmp_path, model, correction={"mode": "bypass"}, engine={"dtype": "bf16"}, prompts_per_step=8)
    code, output, result = why(run)
    assert code == 0, output
    assert "centre" in that_are_it(result)
    assert "target / behaviour and holds all of pi/mu" in result["target_over_proximal"]["answer"]


def changed(run, folder, column):
    """A copy of the run in whose capture the trainer's record is replaced by column(columns, manifest)."""
    copy = folder / run.name
    shutil.copytree(run, copy)
    capture = copy / "captures" / "step_2"
    columns = load_file(capture / "tensors.safetensors")
    facts = json.loads((capture / "manifest.json").read_text())
    columns["proximal_logprobs"][:] = column(columns)
    save_file(columns, capture / "tensors.safetensors")
    facts["columns_digest"] = xxhash.xxh3_128_hexdigest((capture / "tensors.safetensors").read_bytes())
    (capture / "manifest.json").write_text(json.dumps(facts))
    return copy


def logprobs_at(temperature, model, weights):
    """The log-probs of a capture's tokens by transformers, logits divided by `temperature`."""
    from safetensors.torch import load_file as load_tensors
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    policy.load_state_dict(load_tensors(weights), strict=False)

    def column(columns):
        logprobs = []
        for s, group in enumerate(columns["group"]):
            prompt = columns["prompt_ids"][columns["prompt_offsets"][group]:columns["prompt_offsets"][group + 1]]
            completion = columns["token_ids"][columns["token_offsets"][s]:columns["token_offsets"][s + 1]]
            ids = torch.tensor([[*prompt.tolist(), *completion.tolist()]])
            with torch.inference_mode():
                table = torch.log_softmax(policy(ids).logits[0] / temperature, -1)
            logprobs += [table[len(prompt) - 1 + i, token].item() for i, token in enumerate(completion.tolist())]
        return logprobs
    return column


@pytest.mark.parametrize("temperature, words", [(1, "forgot the temperature"), (0.64, "applied the temperature twice"),
                                                (0.7, "scored at another temperature")])
def test_a_trainer_at_another_temperature_than_the_sampler_is_named(cool, model, tmp_path, temperature, words):
    weights = cool / "captures" / "weights" / "v_1.safetensors"
    code, output, result = why(changed(cool, tmp_path, logprobs_at(temperature, model, weights)))
    assert code == 0, output
    assert that_are_it(result) == {"temperature"}
    assert words in result["pi_over_mu"]["answer"]
    assert f"its record is of {temperature}, tokens were drawn at 0.8" in result["pi_over_mu"]["answer"]


def test_a_trainers_record_that_no_experiment_gives_back_is_left_open(cool, tmp_path):
    code, output, result = why(changed(cool, tmp_path, lambda c: c["proximal_logprobs"] - 0.1 * (c["token_ids"] % 2)))
    assert code == 0, output
    assert not that_are_it(result)
    assert findings(result)["trainer's record"] == "cannot tell"
    assert "no cause can be named yet" in result["pi_over_mu"]["answer"]


def test_a_capture_by_itself_is_enough_for_pi_over_mu_and_says_so_of_the_other_ratio(exact, tmp_path):
    shutil.copytree(exact / "captures", tmp_path / "captures")
    code, output, result = why(tmp_path / "captures" / "step_2")
    assert code == 0, output
    assert result["pi_over_mu"]["state"] == "one" and result["target_over_proximal"]["state"] == "unknown"
    assert findings(result)["later updates"] == "cannot tell"


def test_a_capture_that_is_not_comparable_gets_its_fault_and_no_ratio(cool, tmp_path):
    copy = changed(cool, tmp_path, lambda c: c["proximal_logprobs"])
    capture = copy / "captures" / "step_2"
    columns = load_file(capture / "tensors.safetensors")
    columns["token_ids"][3] += 1
    save_file(columns, capture / "tensors.safetensors")
    facts = json.loads((capture / "manifest.json").read_text())
    facts["columns_digest"] = xxhash.xxh3_128_hexdigest((capture / "tensors.safetensors").read_bytes())
    (capture / "manifest.json").write_text(json.dumps(facts))
    code, output, result = why(copy)
    assert code == 3, output
    assert "pi/mu has no meaning here" in output and "tokens_differ" in that_are_it(result)
    assert "mean abs" not in output, "no drift number where the consistency checks fail"


def test_a_run_without_captures_is_told_how_to_make_one(model, tmp_path):
    run = finished_run(tmp_path, model, capture=False)
    code, output, result = why(run)
    assert code == 3 and result is None
    assert "no captures" in output and "trainer.capture.every=1" in output and "tandem drift capture" in output
    code, output, _ = why(tmp_path / "nowhere")
    assert code == 3 and "neither a run directory" in output
