"""Adapters beside the weights of a server: a run that pushes them, what the lab says of it, and several at once by request."""
import json
import pathlib

import peft
import pytest
import torch
import transformers

import small_run
from rollout_client import Server, load_stubs

LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"), "--dtype", "bf16")


@pytest.fixture(scope="module")
def stubs():
    return load_stubs()


def config_for(folder, model, engine=None, lora=None, **trainer):
    path = small_run.write_config(folder, model, lora={**LORA, **(lora or {})}, **trainer)
    config = json.loads(path.read_text())
    config["server"]["engine"].update({"dtype": "bf16", "lora": "unmerged", **(engine or {})})
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("engine", [{}, {"weights": "int8", "kv": "int8"}], ids=["bf16", "int8"])
def test_a_pushed_adapter_is_applied_beside_the_weights_and_proven(model, tmp_path, engine):
    config = config_for(tmp_path, model, engine=engine, steps=4, dtype="fp32", checkpoint={"every": 4}, optimizer={"learning_rate": 1e-2})
    code, output = small_run.run(config)
    assert code == 0, output
    steps = small_run.steps(tmp_path)
    assert len(steps) == 4
    for step in steps:
        assert step["push/arrived_share"] == pytest.approx(1, abs=1e-9), "nothing is rounded"
        assert step["drift/mean_abs_delta"] < 0.1, step["step"]
    assert {event["form"] for event in small_run.events(tmp_path, "push_committed")} == {"adapter"}
    small_run.check_ledger(tmp_path)


def test_merged_and_unmerged_servers_sample_almost_the_same_and_the_lab_names_the_rounding(model, tmp_path):
    drift = {}
    for lora in ("merged", "unmerged"):
        folder = tmp_path / lora
        folder.mkdir()
        capture = small_run.capture_of_config(config_for(folder, model, engine={"lora": lora}, steps=3, dtype="fp32", deterministic=True,
                                                         capture={"every": 3}, prompts_per_step=8, optimizer={"learning_rate": 1e-2}))
        code, table, result = small_run.drift("attribute", capture)
        assert code == 0, table
        parts = {part["part"]: part["mean_abs_alone"]["value"] for part in result["parts"]}
        assert parts["record"] == 0, table
        assert ("unmerged" in parts) == (lora == "unmerged"), table
        drift[lora] = parts
        code, table, _ = small_run.drift("why", capture)
        assert code == 0 and ("adapters beside the server's weights" in table) == (lora == "unmerged"), table
    assert drift["unmerged"]["unmerged"] > 1e-5, "merged weights are rounded to bf16"


def test_an_adapter_that_a_server_does_not_apply_is_named(model, tmp_path):
    capture = small_run.capture_of_config(config_for(tmp_path, model, steps=3, dtype="fp32", deterministic=True, capture={"every": 3},
                                                     optimizer={"learning_rate": 1e-2}))
    manifest = json.loads((capture / "manifest.json").read_text())
    assert manifest["servers"][0]["lora"] == "unmerged"
    (of,) = [weights["adapter"] for weights in manifest["weights"] if weights["version"] == 2]
    assert of["rank"] == 4 and of["scaling"] == 2 and (capture / of["file"]).exists()
    (capture / of["file"]).unlink()
    code, table, _ = small_run.drift("attribute", capture)
    assert code != 0 and pathlib.Path(of["file"]).name in table, table


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory):
    """Two adapters that PEFT made."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        adapted = peft.get_peft_model(base, peft.LoraConfig(r=3 + seed, lora_alpha=8, target_modules="all-linear"))
        with torch.no_grad():
            for parameter_name, parameter in adapted.named_parameters():
                if "lora_B" in parameter_name:
                    parameter.normal_(std=0.05)
        adapted.save_pretrained(folder / name)
    return folder


def logprobs_in_peft(model, adapter, ids):
    policy = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        policy = peft.PeftModel.from_pretrained(policy, adapter)
    with torch.inference_mode():
        logprobs = policy.eval()(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def test_requests_choose_among_adapters_at_once_and_get_the_log_probs_of_peft(model, adapters, stubs):
    pb, pb_grpc, _, _ = stubs
    flags = ["--set", f"server.engine.lora_modules={{first: {adapters / 'first'}, second: {adapters / 'second'}}}"]
    with Server(model, "--dtype", "fp32", *flags) as server:
        rollout = pb_grpc.RolloutServiceStub(server.channel)
        info = rollout.GetInfo(pb.GetInfoRequest(), timeout=60)
        assert info.lora == "merged" and list(info.adapters) == ["first", "second"]
        prompt = list(range(5, 30))
        calls = {name: rollout.GenerateGroup(pb.GenerateGroupRequest(
            run_id="run", group_id=number, prompt_token_ids=prompt, num_completions=2, adapter=name,
            sampling=pb.SamplingParams(temperature=1, max_new_tokens=12, seed=3, ignore_eos=True)), timeout=120)
            for number, name in enumerate(("", "first", "second"), start=1)}
        texts = set()
        for name, call in calls.items():
            for completion in (event.completion for event in call if event.HasField("completion")):
                ids = prompt + list(completion.token_ids)
                want = logprobs_in_peft(model, adapters / name if name else None, ids)[len(prompt) - 1:]
                assert list(completion.behaviour_logprobs) == pytest.approx(want, abs=2e-4), name
                texts.add(tuple(completion.token_ids))
                (score,) = rollout.Score(pb.ScoreRequest(run_id="run", adapter=name, sequences=[
                    pb.ScoreSequence(token_ids=ids, num_prompt_tokens=len(prompt))]), timeout=60).scores
                assert list(score.logprobs)[-12:] == list(completion.behaviour_logprobs)
        assert len(texts) > 3, "adapters change what is sampled"


def test_what_contradicts_is_refused_before_anything_starts(model, tmp_path):
    for settings, words in ((["trainer.numerics=exact", "server.engine.numerics=exact"], "engine.lora unmerged with numerics exact"),
                            (["server.engine.lora=beside"], "merged")):
        code, output = small_run.run(config_for(tmp_path, model), *(word for setting in settings for word in ("--set", setting)))
        assert code == 2 and words in output, output
