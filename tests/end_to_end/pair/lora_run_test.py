"""Runs that train adapters (LoRA), with real servers: what they serve, what checkpoints hold, what other tools and `peft` make of
them, and what is refused."""
import json
import pathlib
import subprocess

import peft
import pytest
import torch
import transformers
import xxhash
from safetensors.torch import load_file

import small_run

from rollout_client import BIN, Server

LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"), "--dtype", "bf16")


def config_for(folder, model, dtype="bf16", engine=None, lora=None, **trainer):
    path = small_run.write_config(folder, model, dtype=dtype, lora={**LORA, **(lora or {})}, **trainer)
    config = json.loads(path.read_text())
    config["server"]["engine"].update({"dtype": dtype, **(engine or {})})
    path.write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def address(model):
    """The address of an fp32 server for trainers that end by themselves and release it."""
    with Server(model, "--dtype", "fp32") as server:
        yield server.address


def train(config, address, *arguments):
    """A trainer at this server, where the launcher is not what is tested: (exit code, output)."""
    done = subprocess.run([str(BIN / "trainer"), "--config", str(config), "--servers", address, *arguments], capture_output=True,
                          text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def checkpoint(folder, step):
    return folder / "runs" / "small" / "checkpoints" / f"step_{step}"


def scores(*flags, lines):
    done = subprocess.run([str(small_run.TANDEM), "score", *map(str, flags)], capture_output=True, text=True, timeout=240,
                          input="".join(json.dumps(line) + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def tandem(*arguments, code=0):
    done = subprocess.run([str(small_run.TANDEM), *map(str, arguments)], capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("push", ["adapters", "merged"])
@pytest.mark.parametrize("engine", [{}, {"weights": "int8", "kv": "int8"}], ids=["bf16", "int8"])
def test_exact_sides_have_the_same_bits_over_pushes_of_adapters(model, tmp_path, push, engine):
    fake = {"fake_quantise": engine} if engine else {}
    config = config_for(tmp_path, model, lora={"push": push}, engine=engine, steps=4, **fake)
    code, output = small_run.run(config, "--numerics", "exact")
    assert code == 0, output
    steps = small_run.steps(tmp_path)
    assert len(steps) == 4
    for step in steps:
        assert step["drift/max_abs_delta"] == 0, step["step"]
        assert step["push/changed_share"] > 0 and 0.5 < step["push/arrived_share"] < 1.5
    forms = {event["form"] for event in small_run.events(tmp_path, "push_committed")}
    assert ("adapter" in forms) == (push == "adapters")
    small_run.check_ledger(tmp_path)


def test_both_pushes_give_the_same_run(model, tmp_path):
    metrics = []
    for push in ("adapters", "merged"):
        folder = tmp_path / push
        folder.mkdir()
        code, output = small_run.run(config_for(folder, model, lora={"push": push}, deterministic=True))
        assert code == 0, output
        metrics.append([(step["loss/total"], step["drift/mean_abs_delta"]) for step in small_run.steps(folder)])
    assert metrics[0] == metrics[1]


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """The folder of a run of three steps with checkpoints, and its captures."""
    folder = tmp_path_factory.mktemp("trained")
    config = config_for(folder, model, dtype="fp32", checkpoint={"every": 1, "keep": 3}, capture={"every": 3},
                        loss={"kl_coefficient": 0.01}, lora={"dropout": 0.1})
    code, output = small_run.run(config)
    assert code == 0, output
    return folder


def test_a_checkpoint_is_a_peft_directory_whose_model_scores_the_same_in_peft(trained, model, tmp_path):
    directory = checkpoint(trained, 3)
    assert not (directory / "model.safetensors").exists()
    config = json.loads((directory / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 8, 0.1)
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, directory).eval()
    ids = torch.arange(3, 60).tolist()
    with torch.inference_mode():
        logprobs = adapted(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        with adapted.disable_adapter():
            of_base = adapted(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    want = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert (logprobs - of_base).abs().max() > 1e-3
    merged = tmp_path / "merged"
    tandem("export", directory, "--out", merged)
    for source in (directory, merged):  # the checkpoint itself is a model, too
        got = scores("--model", source, "--dtype", "fp32", lines=[{"ids": ids}])[0]["logprobs"][1:]
        assert got == pytest.approx(want.tolist(), abs=2e-4)
    alone = tmp_path / "adapter"
    tandem("export", trained / "runs" / "small", "--adapter", "--out", alone)
    ours, theirs = (load_file(d / "adapter_model.safetensors") for d in (alone, directory))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_bf16_export_has_the_bits_that_a_bf16_server_served(model, tmp_path):
    code, output = small_run.run(config_for(tmp_path, model, checkpoint={"every": 1, "keep": 3}, capture={"every": 3}))
    assert code == 0, output
    tandem("export", checkpoint(tmp_path, 2), "--out", tmp_path / "merged", "--dtype", "bf16")
    manifest = json.loads((tmp_path / "runs" / "small" / "captures" / "step_3" / "manifest.json").read_text())
    served = next(weights["served"] for weights in manifest["weights"] if weights["version"] == 2)
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    digests = {name: xxhash.xxh3_128_hexdigest(tensor.view(torch.uint16).numpy().tobytes()) for name, tensor in merged.items()}
    assert digests == served


def test_several_ranks_train_the_same_adapters_whole_and_sharded(model, tmp_path):
    numbers = []
    for name, ranks, shards in (("alone", 1, False), ("whole", 2, False), ("sharded", 2, True)):
        folder = tmp_path / name
        folder.mkdir()
        config = config_for(folder, model, dtype="fp32", checkpoint={"every": 1}, loss={"kl_coefficient": 0.01},
                            capture={"every": 3}, ranks={"shard_parameters": shards})
        run_file = json.loads(config.read_text())
        run_file["launch"]["num_ranks"] = ranks
        config.write_text(json.dumps(run_file))
        code, output = small_run.run(config)
        assert code == 0, output
        first = small_run.steps(folder)[0]
        numbers.append([first["loss/total"], first["optimizer/grad_norm"]])
        assert numbers[-1] == pytest.approx(numbers[0], rel=1e-4, abs=1e-7)
        assert len(load_file(checkpoint(folder, 3) / "adapter_model.safetensors")) == 2 * 21  # 7 in 3 layers
        assert "token" in tandem("drift", "why", folder / "runs" / "small" / "captures" / "step_3")


def test_a_resumed_run_goes_on_bit_for_bit(model, address, tmp_path):
    options = {"checkpoint": {"every": 1}, "loss": {"kl_coefficient": 0.01}, "deterministic": True, "dtype": "fp32"}
    losses = []
    for name, stops in (("whole", [4]), ("parts", [2, 4])):
        folder = tmp_path / name
        folder.mkdir()
        config = config_for(folder, model, lora={"dropout": 0.1}, **options)
        for stop in stops:
            code, output = train(config, address, "--set", f"trainer.steps={stop}", *(["--resume"] if stop != stops[0] else []))
            assert code == 0, output
        losses.append([step["loss/total"] for step in small_run.steps(folder)])
    assert losses[0] == losses[1] and len(losses[0]) == 4


def test_the_run_can_be_attributed_and_names_a_base_that_is_not_the_servers(trained, model, tmp_path):
    capture = trained / "runs" / "small" / "captures" / "step_3"
    assert "token" in tandem("drift", "why", capture)
    other = small_run.make_model(tmp_path / "other", "--dtype", "bf16", "--seed", "9")
    config = config_for(tmp_path, model)
    run_file = json.loads(config.read_text())
    run_file["server"]["model"] = str(other)
    config.write_text(json.dumps(run_file))
    code, output = small_run.run(config)
    assert code == 2
    assert "start it with the model that the trainer starts from" in output, output


def test_an_adapter_is_trained_on_from_a_peft_directory_and_must_fit(trained, model, address, tmp_path):
    start = checkpoint(trained, 3)
    code, output = train(config_for(tmp_path, model, dtype="fp32", lora={"start": str(start)}, steps=1), address)
    assert code == 0, output
    # The first policy is already away from the base.
    assert small_run.steps(tmp_path)[0]["push/changed_share"] > 0
    code, output = train(tmp_path / "run.yaml", address, "--clean", "--set", "trainer.lora.rank=8")
    assert code == 3 and "rank 4, and trainer.lora 8: set it to 4" in output, output
    code, output = train(tmp_path / "run.yaml", address, "--clean", "--set", "trainer.lora.targets=[q_proj]")
    assert code == 3 and "adapts other layers" in output, output


@pytest.mark.parametrize("settings, words", [
    (["trainer.lora.targets=[q_proj, w9]"], "trainer.lora.targets: 'w9' is none of the model's linear layers"),
    (["trainer.lora.targets=[lm_head]"], "the model's head is its embedding"),
    (["trainer.lora.dropout=0.1", "trainer.numerics=exact", "server.engine.numerics=exact"], "leave nothing out"),
    (["trainer.fake_quantise.weights=int8"], "set numerics exact"),
    (["trainer.reference.kind=ema", "trainer.loss.kl_coefficient=0.1"], "a mean of factors"),
    (["trainer.lora.rank=0", "trainer.lora.start=somewhere"], "trainer.lora.start"),
])
def test_options_that_contradict_are_refused_before_anything_starts(model, tmp_path, settings, words):
    config = config_for(tmp_path, model)
    code, output = small_run.run(config, *(word for setting in settings for word in ("--set", setting)))
    assert code in (2, 3) and words in output, output


def test_a_run_is_not_resumed_with_other_adapters(trained, model, tmp_path):
    config = json.loads((trained / "run.yaml").read_text())
    config["trainer"]["steps"] = 4
    config["trainer"]["lora"] = {"rank": 0}
    path = pathlib.Path(tmp_path / "run.yaml")
    path.write_text(json.dumps(config))
    code, output = small_run.run(path, "--resume")
    assert code != 0 and "trainer.lora" in output, output
