"""`tandem drift attribute` on captures of real runs: exact zeros, precision, staleness, and refused input."""
import json
import pathlib
import shutil

import numpy as np
import pytest
import small_run
import xxhash
from safetensors.numpy import load_file, save_file


def attribute(capture, *arguments):
    return small_run.drift("attribute", capture, *arguments)


def parts(result):
    return {part["part"]: part for part in result["parts"]}


BF16_RUN = {"engine": {"dtype": "bf16"}, "prompts_per_step": 8,
            "sampling": {"temperature": 0.9, "max_new_tokens": 12}}


@pytest.fixture(scope="module")
def exact(model, tmp_path_factory):
    return small_run.capture_of(tmp_path_factory.mktemp("exact"), model, "--numerics", "exact", dtype="bf16",
                                engine={"dtype": "bf16"})


@pytest.fixture(scope="module")
def bf16(model, tmp_path_factory):
    return small_run.capture_of(tmp_path_factory.mktemp("bf16"), model, **BF16_RUN)


@pytest.fixture(scope="module")
def emulated(bf16, model, tmp_path_factory):
    """The same run where nothing has the bf16 instructions of the processor."""
    if not small_run.has_native_bf16():
        return bf16
    with pytest.MonkeyPatch.context() as patch:
        small_run.without_native_bf16(patch)
        return small_run.capture_of(tmp_path_factory.mktemp("emulated"), model, **BF16_RUN)


def test_in_exact_mode_every_number_is_what_equals_have_and_there_is_nothing_to_explain(exact):
    code, table, result = attribute(exact)
    assert code == 0, table
    assert "the gap is exactly 0: nothing to explain" in table
    metrics = {name: number["value"] for name, number in result["metrics"]["by_completion"].items()}
    for name in ("mean_delta", "k1", "k2", "k3", "chi2", "mean_abs_delta", "max_abs_delta", "abs_delta_p99",
                 "share_above_1e6", "log_ppl_gap", "sequence_log_ratio_max", "mean_abs_probability_difference"):
        assert metrics[name] == 0, name
    assert metrics["mean_w"] == metrics["ess_fraction"] == metrics["pearson_probability"] == 1
    assert abs(metrics["calibration_z"]) < 4
    assert result["verdict"]["nothing_to_explain"] and not result["verdict"]["named"]
    for part in result["parts"]:
        assert part["mean_abs_alone"] == {"value": 0, "low": 0, "high": 0}, part["part"]


def test_in_fp32_on_both_sides_only_the_kernels_differ_and_no_fault_is_named(model, tmp_path):
    code, table, result = attribute(small_run.capture_of(tmp_path, model))
    assert code == 0, table
    for name, part in parts(result).items():
        if name not in ("kernels", "layout"):
            assert part["mean_abs_alone"]["value"] == 0, name
    assert result["total"]["mean_abs"]["value"] < 1e-5
    assert {cause["cause"] for cause in result["verdict"]["named"]} <= {"kernels", "layout"}


def test_the_bf16_instructions_of_the_processor_are_within_rounding_of_their_emulation(bf16):
    code, table, result = attribute(bf16)
    assert code == 0, table
    emulation = parts(result)["emulation"]["mean_abs_alone"]["value"]
    assert emulation < 1e-5 if small_run.has_native_bf16() else emulation == 0, table


def test_a_bf16_server_is_split_over_cast_body_kv_and_head_in_shares_that_add_up(emulated, monkeypatch):
    small_run.without_native_bf16(monkeypatch)
    code, table, result = attribute(emulated, "--full")
    assert code == 0, table
    found = parts(result)
    assert found["record"]["mean_abs_alone"]["value"] == 0, "the record is what the engine computes"
    assert found["path"]["mean_abs_alone"]["value"] == 0, "decode and prefill give the same bits here"
    assert found["emulation"]["mean_abs_alone"]["value"] == 0, "fp32 rounded at the sites is bf16 here"
    for measure in ("square_share", "k3_share"):
        assert sum(part[measure]["value"] for part in found.values()) == pytest.approx(1, abs=1e-6)
    for name in ("cast", "body", "kv", "head"):
        assert found[name]["mean_abs_alone"]["low"] > 1e-5, name
    named = [cause["cause"] for cause in result["verdict"]["named"]]
    assert "body" in named and "staleness" not in named
    assert result["alone"] == {"num_completions": 8, "num_tokens": pytest.approx(90, abs=10), "max_abs": 0}
    split = result["additive_split"]
    assert split["num_missing"] == 0
    total = sum(split[name]["mean"]["value"] for name in ("record", "engine", "cast", "staleness"))
    assert total == pytest.approx(result["total"]["mean"]["value"], abs=1e-8)


def test_four_versions_of_staleness_are_named(model, tmp_path):
    capture = small_run.capture_of(tmp_path, model, steps=6, max_staleness=4, push={"hold_back_versions": 4},
                                   prompts_per_step=8)
    code, table, result = attribute(capture)
    assert code == 0, table
    (cause,) = result["verdict"]["named"]
    assert cause["cause"] == "staleness"
    assert cause["square_share"]["low"] > 0.9
    assert result["splits"]["version_lag"][0]["label"] == "3-4"
    assert result["additive_split"]["staleness"]["mean_abs"]["low"] > 1e-4


def changed(capture, folder, change=None, manifest=None):
    """A copy of the capture with changed columns and a correct digest."""
    copy = folder / capture.name
    shutil.copytree(capture, copy)
    (folder / "weights").symlink_to(capture.parent / "weights")
    columns = load_file(copy / "tensors.safetensors")
    facts = json.loads((copy / "manifest.json").read_text())
    if change is not None:
        change(columns)
    if manifest is not None:
        manifest(facts)
    save_file(columns, copy / "tensors.safetensors")
    facts["columns_digest"] = xxhash.xxh3_128_hexdigest((copy / "tensors.safetensors").read_bytes())
    (copy / "manifest.json").write_text(json.dumps(facts))
    return copy


def test_one_token_that_nothing_explains_is_an_open_question_and_not_rounded_away(bf16, tmp_path):
    def change(columns):
        columns["behaviour_logprobs"][7] -= 0.3
    code, table, result = attribute(changed(bf16, tmp_path, change))
    assert code == 0, table
    assert result["record"]["before"]["matched_share"] > 0.995, "one of some four hundred"
    assert result["record"]["explained"] is False
    assert any("none of" in question["what"] for question in result["verdict"]["open"]), table


def expect_fault(capture, fault):
    code, output, result = attribute(capture)
    assert code == 3, output
    assert "Not comparable" in output and fault in output
    assert result["comparable"] is False and fault in [finding["fault"] for finding in result["findings"]]
    assert "metrics" not in result and "delta = " not in output, "no drift number where the consistency checks fail"
    return output


def test_ids_that_were_re_tokenised_are_a_discrete_fault(bf16, tmp_path):
    def change(columns):
        columns["token_ids"][5] += 1
    expect_fault(changed(bf16, tmp_path, change), "tokens_differ")


@pytest.mark.parametrize("value, fault", [(np.nan, "record_missing"), (-9999, "record_missing"),
                                          (0, "record_synthetic")])
def test_stand_ins_for_log_probs_are_a_discrete_fault(bf16, tmp_path, value, fault):
    def change(columns):
        columns["behaviour_logprobs"][7] = value
    expect_fault(changed(bf16, tmp_path, change), fault)


def test_versions_that_fall_along_a_completion_are_a_discrete_fault(bf16, tmp_path):
    def change(columns):
        columns["weight_version"][1] -= 1
    expect_fault(changed(bf16, tmp_path, change), "versions_fall")


def test_servers_that_ran_other_weights_are_a_discrete_fault(bf16, tmp_path):
    def manifest(facts):
        facts["weights"][-1]["served"]["model.norm.weight"] = "0" * 32
    assert "model.norm.weight" in expect_fault(changed(bf16, tmp_path, manifest=manifest), "weights_differ")


def test_nothing_that_proves_what_servers_ran_is_said_so(bf16, tmp_path):
    def manifest(facts):
        facts["weights"][-1]["served"] = {}
    expect_fault(changed(bf16, tmp_path, manifest=manifest), "weights_unproven")


def test_damaged_captures_and_missing_weights_say_what_to_do(bf16, tmp_path):
    copy = changed(bf16, tmp_path)
    columns = copy / "tensors.safetensors"
    columns.write_bytes(columns.read_bytes()[:-8])
    code, output, _ = attribute(copy)
    assert code == 3 and "cut short or changed" in output
    code, output, _ = attribute(tmp_path / "nowhere")
    assert code == 3 and "no such capture" in output
    (tmp_path / "bare").mkdir()
    bare = changed(bf16, tmp_path / "bare", manifest=lambda facts: facts["weights"][-1].update(masters=""))
    code, output, _ = attribute(bare)
    assert code == 3 and "--weights" in output
    weights = bf16.parent / "weights" / "v_1.safetensors"
    assert attribute(bare, "--weights", str(weights))[0] == 0
    shutil.rmtree(tmp_path / "bare" / bf16.name)
    pathlib.Path(tmp_path / "bare" / "weights").unlink()
    code, output, _ = attribute(bf16, "--model", str(tmp_path))
    assert code == 3 and "config.json" in output


LAST_BELOW_HALF_A_STEP = 0x7fff  # in units of the 16 bits of an fp32 number that bf16 does not have; 0x8000 is half a bf16 step


def make_model_without_layers(directory):
    """Returns (tensors, epsilon) of a model whose layers add exactly 0 (o_proj and down_proj are 0), so that the log-prob of
    a token has a closed form without rounded products. All numbers in the matrices of the layers are bf16 numbers. All
    numbers in embedding, norms and head are slightly less than half a bf16 step further from 0 than a bf16 number. So
    rounding makes them smaller by 0.2 to 0.4 %. Head and last norm then make the logits smaller by 0.4 to 0.8 %, and
    log-probs change by about that share of the spread of the logits, which is 3.
    """
    small_run.make_model(directory, "--untied")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        bits = tensor.view(np.uint32) & 0xffff0000
        if not name.endswith("_proj.weight"):
            bits |= LAST_BELOW_HALF_A_STEP
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            bits[:] = 0
        tensors[name] = bits.view(np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    return tensors, json.loads((directory / "config.json").read_text())["rms_norm_eps"]


def logprobs_without_layers(tensors, epsilon, columns):
    """[T], fp64: log softmax(head . (norm * embedding / rms(embedding))) of a capture's tokens, from their predecessors."""
    embedding, norm, head = (tensors[name].astype(np.float64) for name in
                             ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"))
    hidden = norm * embedding / np.sqrt((embedding ** 2).mean(axis=1, keepdims=True) + epsilon)
    logits = hidden @ head.T
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    before = np.roll(columns["token_ids"], 1)
    last_of_prompts = columns["prompt_ids"][columns["prompt_offsets"][1:] - 1]
    before[columns["token_offsets"][:-1]] = last_of_prompts[columns["group"]]
    return logprobs[before, columns["token_ids"]]


@pytest.mark.parametrize("served", ["bf16", "fp32"])
def test_what_a_bf16_trainer_reads_in_fp32_is_booked_to_the_cast_and_not_to_its_kernels(tmp_path, served):
    """A bf16 trainer uses embedding, norms and head in fp32. Compared with a bf16 server, these cause all drift, and it is
    attributed to the cast. An fp32 server has the same weights, and the cast has exactly 0. The part of the kernels is
    only the order of fp32 sums, for any weights."""
    masters, epsilon = make_model_without_layers(tmp_path / "model")
    rounded = {name: (tensor.view(np.uint32) & 0xffff0000).view(np.float32) for name, tensor in masters.items()}
    capture = small_run.capture_of(tmp_path, tmp_path / "model", steps=1, dtype="bf16", engine={"dtype": served})
    code, table, result = attribute(capture)
    assert code == 0, table
    columns = load_file(capture / "tensors.safetensors")
    trainers = logprobs_without_layers(masters, epsilon, columns)
    servers = logprobs_without_layers(rounded if served == "bf16" else masters, epsilon, columns)
    assert abs(columns["behaviour_logprobs"] - servers).max() < 1e-5, "the closed form is the server's"
    assert abs(columns["proximal_logprobs"] - trainers).max() < 1e-5, "the closed form is the trainer's"
    found = {name: part["mean_abs_alone"]["value"] for name, part in parts(result).items()}
    print(served, found)
    if served == "fp32":
        assert found["cast"] == 0, table
    else:
        assert found["cast"] == pytest.approx(abs(trainers - servers).mean(), abs=1e-5), table
        assert found["cast"] > 5e-3, table
    assert found["kernels"] < 1e-5, table
