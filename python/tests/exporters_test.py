"""Exporters and hooks against objects in the exact layout of each framework, made here after the source that each test names.

None of verl, SkyRL, slime and AReaL installs beside the others on a CPU, so stand-ins hold their place: classes of the same
module and name, with the members that the frameworks pickle or pass. docs/python.md says which were also tried by hand on
what the real packages make. TRL itself is tested in trl_hook_test.py.
"""
import pathlib
import pickle
import re
import sys
import types

import numpy as np
import pytest
import torch

import tandem_rl
from conftest import ROOT
from tandem_rl.export import areal_hook, skyrl, slime, verl, verl_hook
from tandem_rl.export.padded_rows import append_rows, padded_row, version_spans

EXPORT = ROOT / "python/tandem_rl/export"
NAN = float("nan")
PROMPTS, RESPONSES = torch.tensor([[0, 1, 11], [1, 12, 13]]), torch.tensor([[21, 22, 2, 0], [23, 99, 24, 2]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]])
ATTENTION = torch.tensor([[0, 1, 1, 1, 1, 1, 0], [1] * 7])
BEHAVIOUR = torch.tensor([[-.5, -.25, -.125, 0], [-1, 0, -2, -3]])
PROXIMAL = torch.tensor([[-.75, -.5, -.25, -9], [-1.5, -8, -2.5, -3.5]])


def stand_in(monkeypatch, name, **members):
    """A module with classes in it that are pickled under its name."""
    module = types.ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
        if isinstance(value, type):
            value.__module__, value.__qualname__ = name, member
    parts = name.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def export(monkeypatch, module, header, path, out):
    """As the command line does it."""
    monkeypatch.setattr(sys, "argv", ["export", "--model", "Q/W", str(path), str(out)])
    module.run(module.rows_of, header, "files")
    records = tandem_rl.read_records(out)
    assert records.header["model"] == "Q/W"
    return records


def expect_two_rows(records, proximal):
    assert records.token_ids.tolist() == [1, 11, 21, 22, 2, 1, 12, 13, 23, 99, 24, 2]
    assert records.drawn.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1, 1]
    np.testing.assert_array_equal(records.columns["behaviour_logprobs"],
                                  [NAN, NAN, -.5, -.25, -.125, NAN, NAN, NAN, -1, NAN, -2, -3])
    if proximal:
        np.testing.assert_array_equal(records.columns["proximal_logprobs"],
                                      [NAN, NAN, -.75, -.5, -.25, NAN, NAN, NAN, -1.5, NAN, -2.5, -3.5])
    else:
        assert "proximal_logprobs" not in records.columns


@pytest.mark.parametrize("path", sorted(EXPORT.glob("*.py")), ids=lambda path: path.name)
def test_an_exporter_is_read_in_one_glance(path):
    if path.stem != "padded_rows":
        assert len(path.read_text().splitlines()) <= 40


def test_no_exporter_imports_a_framework_before_it_runs():
    for path in EXPORT.glob("*.py"):
        top = re.findall(r"^(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
        assert not {name.split(".")[0] for name in top} & {"verl", "torch", "trl", "areal", "skyrl", "slime", "transformers"}


def verl_batch():
    """verl/experimental/agent_loop/agent_loop.py (_postprocess): prompts padded on the left, responses on the right."""
    return {"prompts": PROMPTS, "responses": RESPONSES, "response_mask": MASK, "attention_mask": ATTENTION,
            "input_ids": torch.cat([PROMPTS, RESPONSES], dim=1), "rollout_log_probs": BEHAVIOUR,
            "rm_scores": torch.tensor([[0, 0, 1., 0], [0, 0, 0, .5]])}


class DataProto:
    """verl/protocol.py, of which save_to_disk pickles the object."""

    def __init__(self, batch, non_tensor_batch):
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch, {}


def test_verl_gen_batch(tmp_path, monkeypatch):
    stand_in(monkeypatch, "verl.protocol", DataProto=DataProto)
    proto = DataProto(verl_batch(), {"uid": np.array(["u", "v"], dtype=object)})
    (tmp_path / "gen_batch.dp").write_bytes(pickle.dumps(proto))
    (tmp_path / "meta.json").write_text('{"global_steps": 7}')
    records = export(monkeypatch, verl, verl.header_for("verl", verl.COLUMNS, {}, {}), tmp_path / "gen_batch.dp",
                     tmp_path / "records.jsonl")
    expect_two_rows(records, proximal=False)
    assert [(facts.group_id, facts.step, facts.reward) for facts in records.rows] == [("u", 7, 1.0), ("v", 7, 0.5)]


def as_lists(batch):
    return {name: values.tolist() if hasattr(values, "tolist") else values for name, values in batch.items()}


@pytest.mark.parametrize("wrapped", [True, False])
def test_verl_batch_that_was_pickled_as_a_plain_dict_of_lists(tmp_path, monkeypatch, wrapped):
    batch = as_lists({**verl_batch(), "old_log_probs": PROXIMAL})
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(pickle.dumps({"batch": batch, "non_tensor_batch": {"uid": ["u", "v"]}} if wrapped else batch))
    records = export(monkeypatch, verl, verl.header_for("verl", verl.COLUMNS, {}, {}), path, tmp_path / "r.jsonl")
    expect_two_rows(records, proximal=True)
    assert [(facts.group_id, facts.reward) for facts in records.rows] == [("u" if wrapped else None, 1.0),
                                                                          ("v" if wrapped else None, 0.5)]


@pytest.mark.parametrize("module, needed", [(verl, "input_ids, response_mask"), (skyrl, "sequences, attention_mask, loss_mask")])
@pytest.mark.parametrize("pickled, found", [({"tokens": [[1]]}, "found no "), ([1, 2], "found list"), ({}, "no fields at all")])
def test_a_pickle_of_something_else_says_what_is_expected(tmp_path, monkeypatch, module, needed, pickled, found):
    path = tmp_path / "theirs.pkl"
    path.write_bytes(pickle.dumps(pickled))
    with pytest.raises(SystemExit) as refused:
        export(monkeypatch, module, {}, path, tmp_path / "r.jsonl")
    message = str(refused.value)
    assert message.startswith(f"{path}: expected a dict of tensors or lists with {needed}, found") and found in message
    assert not (tmp_path / "r.jsonl").exists()


def test_verl_tq_batch(tmp_path, monkeypatch):
    """verl/utils/skip/rollout_skip.py (RolloutTqSkip.prepare_data): a TensorDict of nested tensors, without padding."""
    def nested(values, keep):
        return torch.nested.as_nested_tensor([row[mask] for row, mask in zip(values, keep)], layout=torch.jagged)
    stands = ATTENTION.bool()
    columns = {"input_ids": nested(torch.cat([PROMPTS, RESPONSES], dim=1), stands),
               **{name: nested(values, stands[:, 3:]) for name, values in {
                   "response_mask": MASK, "rollout_log_probs": BEHAVIOUR, "old_log_probs": PROXIMAL}.items()}}
    torch.save({"tensordict": columns, "tags": [{}, {}], "keys": ["u_0_0", "v_0_0"], "global_steps": 3},
               tmp_path / "tq_batch.pt")
    records = export(monkeypatch, verl, verl.header_for("verl", verl.COLUMNS, {}, {}), tmp_path / "tq_batch.pt",
                     tmp_path / "records.parquet")
    expect_two_rows(records, proximal=True)
    assert [(facts.group_id, facts.step) for facts in records.rows] == [("u", 3), ("v", 3)]


class Config(dict):
    """A part of an omegaconf configuration."""
    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("bypass", [False, True])
def test_verl_hook(tmp_path, bypass):
    """verl/trainer/ppo/ray_trainer.py: _update_actor has the batch with old_log_probs, before the step."""
    class Trainer:
        global_steps = 7
        config = Config(algorithm=Config(rollout_correction={"bypass_mode": bypass}), actor_rollout_ref=Config(
            rollout=Config(name="vllm", temperature=0.7)))

        def _update_actor(self, batch):
            return "updated"
    path = tmp_path / "records.jsonl"
    verl_hook.install(str(path), model="Q/W", trainer=Trainer)
    proto = DataProto({**verl_batch(), "old_log_probs": PROXIMAL}, {"uid": ["u", "v"]})
    assert Trainer()._update_actor(proto) == "updated" and Trainer()._update_actor(batch=proto) == "updated"
    records = tandem_rl.read_records(path)
    assert len(records) == 4 and records.header["behaviour"] == {"engine": "vllm", "temperature": 0.7}
    assert ("proximal_logprobs" in records.columns) != bypass and records.rows[3].step == 7


@pytest.mark.parametrize("name", ["rollout_3.pt", "rollout_3.json"])
def test_slime_rollout_data(tmp_path, monkeypatch, name):
    """The fixture of the importer's tests, which reads the same as JSON (tests/testdata/foreign/make_fixtures.py)."""
    source = ROOT / "tests/testdata/foreign/slime" / name
    if name.endswith(".json"):
        import json
        torch.save(json.loads(source.read_text()), tmp_path / "again.pt")
        source = tmp_path / "again.pt"
    records = export(monkeypatch, slime, slime.header_for("slime", slime.COLUMNS, {}, {}), source, tmp_path / "r.jsonl")
    assert records.token_ids.tolist() == [1, 11, 12, 13, 2, 1, 11, 21, 31, 22]
    np.testing.assert_array_equal(records.columns["behaviour_logprobs"], np.array(
        [NAN, NAN, -.25, -.41, -1.5, NAN, NAN, -.5, NAN, -.75], np.float32))
    assert [(facts.spans, facts.finish_reason, facts.reward) for facts in records.rows] == [
        (((7, 3),), "stop", 1.0), ((), "length", None)]  # two versions, of which tokens is not known


@pytest.mark.parametrize("layout", ["samples", "columns of a rank"])
def test_slime_train_data(tmp_path, monkeypatch, layout):
    """slime/observability/train_data_utils.py (_build_dump_payload), and the columns of one rank that miles saves."""
    columns = {"tokens": [torch.tensor([1, 11, 12, 13, 2]), torch.tensor([1, 14])], "response_lengths": [3, 1],
               "total_lengths": [5, 2], "loss_masks": [torch.tensor([1, 0, 1]), torch.tensor([1])],
               "rollout_log_probs": [torch.tensor([-.25, 0, -1.5]), torch.tensor([-.5])],
               "log_probs": [torch.tensor([-.5, -7, -1.25], dtype=torch.bfloat16), torch.tensor([-.75])],
               "advantages": [torch.tensor([.5, .5, .5]), torch.tensor([-1.])], "rewards": [1.0, 0.0]}
    if layout == "samples":
        data = {"format_version": 2, "rollout_id": 3, "rank": 0, "samples": [
            {name: values[i] for name, values in columns.items()} for i in range(2)]}
    else:
        data = {"rollout_id": 3, "rank": 0, "rollout_data": {**columns, "global_batch_sizes": [2], "raw_reward": 1.0}}
    torch.save(data, tmp_path / "train_3_0.pt")
    records = export(monkeypatch, slime, slime.header_for("slime", slime.COLUMNS, {}, {}), tmp_path / "train_3_0.pt",
                     tmp_path / "r.jsonl")
    np.testing.assert_array_equal(records.delta, [NAN, NAN, -.25, NAN, .25, NAN, -.25])
    assert records.rows[0].step == 3 and records.rows[1].reward == 0.0


class TrainingInputBatch(dict):
    """skyrl/backends/skyrl_train/training_batch.py: a dict of tensors with `metadata`."""
    metadata = None


@pytest.mark.parametrize("padding", ["left", "both sides"])
def test_skyrl_dumped_data(tmp_path, monkeypatch, padding):
    """skyrl/train/dataset/preprocess.py: one block that is padded on the left; earlier releases padded both sides."""
    stand_in(monkeypatch, "skyrl.backends.skyrl_train.training_batch", TrainingInputBatch=TrainingInputBatch)
    sequences, attention, aligned = torch.cat([PROMPTS, RESPONSES], dim=1), ATTENTION, lambda values: values
    if padding == "left":
        sequences = torch.stack([sequences[0].roll(1), sequences[1]])
        attention = torch.stack([attention[0].roll(1), attention[1]])
        aligned = lambda values: torch.stack([values[0].roll(1), values[1]])  # noqa: E731
    filled = {name: torch.cat([values, values[:1]]) for name, values in {
        "sequences": sequences, "attention_mask": attention, "loss_mask": aligned(MASK).float(),
        "rollout_logprobs": aligned(BEHAVIOUR), "action_log_probs": aligned(PROXIMAL)}.items()}
    batch = TrainingInputBatch({**filled, "base_action_log_probs": None, "values": None})
    batch.metadata = {"pad_size": 1}
    path = tmp_path / "global_step_7_training_input.pkl"
    path.write_bytes(pickle.dumps(batch))
    records = export(monkeypatch, skyrl, skyrl.header_for("skyrl", skyrl.COLUMNS, {}, {}), path, tmp_path / "r.jsonl")
    expect_two_rows(records, proximal=True)
    assert records.rows[1].step == 7


def test_skyrl_data_that_was_pickled_as_a_plain_dict_of_lists(tmp_path, monkeypatch):
    batch = {"sequences": torch.cat([PROMPTS, RESPONSES], dim=1), "attention_mask": ATTENTION, "loss_mask": MASK,
             "rollout_logprobs": BEHAVIOUR, "action_log_probs": PROXIMAL, "values": None}
    path = tmp_path / "global_step_7_training_input.pkl"
    path.write_bytes(pickle.dumps(as_lists(batch)))
    expect_two_rows(export(monkeypatch, skyrl, skyrl.header_for("skyrl", skyrl.COLUMNS, {}, {}), path, tmp_path / "r.jsonl"),
                    proximal=True)


def test_areal_hook(tmp_path, monkeypatch):
    """areal/trainer/ppo/actor.py: prox_logp of token t + 1 stands at t; logprobs and versions stand at their token."""
    class Actor:
        config = types.SimpleNamespace(temperature=0.9)
        engine = types.SimpleNamespace(get_version=lambda: 4)

        def _compute_advantages(self, data):
            data["logprobs"] = data["logprobs"].roll(-1, dims=-1)
            return data
    monkeypatch.setenv("RANK", "1")
    areal_hook.install(str(tmp_path / "records_{rank}.jsonl"), actor=Actor)
    data = {"input_ids": torch.tensor([[1, 11, 21, 22, 0], [1, 23, 24, 25, 26]]),
            "attention_mask": torch.tensor([[1, 1, 1, 1, 0], [1] * 5]).bool(),
            "loss_mask": torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 1, 1]]),
            "logprobs": torch.tensor([[0, 0, -.5, -.25, 0], [0, -1, 0, -2, -3.]]),
            "prox_logp": torch.tensor([[-9, -.75, -.5, -9, -9], [-1.5, -9, -2.5, -3.5, -9]]),
            "versions": torch.tensor([[-1, -1, 3, 4, -1], [-1, 4, -1, 4, 4]]), "rewards": torch.tensor([1., 0.])}
    assert Actor()._compute_advantages(dict(data)).keys() == data.keys()
    records = tandem_rl.read_records(tmp_path / "records_1.jsonl")
    assert records.token_ids.tolist() == [1, 11, 21, 22, 1, 23, 24, 25, 26]
    np.testing.assert_array_equal(records.delta, [NAN, NAN, -.25, -.25, NAN, -.5, NAN, -.5, -.5])
    assert [facts.spans for facts in records.rows] == [((3, 1), (4, 1)), ((4, 3),)] and records.rows[0].step == 4
    assert records.header["columns"]["proximal_logprobs"]["transform"] == "shifted_by:-1"


def test_a_row_without_drawn_tokens_is_left_out_and_a_wrong_one_refused(tmp_path):
    path = str(tmp_path / "records.jsonl")
    row = padded_row([5, 6], None, [1], behaviour_logprobs=torch.tensor([-1.]), advantage=None)
    assert "advantage" not in row
    append_rows(path, {}, [row, padded_row([5, 6], None, [0], behaviour_logprobs=torch.tensor([-1.]))])
    with pytest.raises(tandem_rl.RecordsError, match="row 1: token_ids: expected ids of at least 0"):
        append_rows(path, {}, [row, padded_row([-5, 6], None, [1], behaviour_logprobs=torch.tensor([-1.]))])
    assert len(tandem_rl.read_records(pathlib.Path(path))) == 1
    assert version_spans([3, 3, 4, 3]) == [[3, 2], [4, 1], [3, 1]]
