"""Training on preferences and of reward models compared with TRL's trainers: the same tiny model, pairs, order and AdamW, in
fp32. The losses of five updates must agree to 1e-4, and a reward model must score in transformers as it does here.
"""
import json
import random

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from forked_tandem import forked_tandem
from make_models import make_model

UPDATES, BATCH, PAIRS, LEARNING_RATE = 5, 8, 32, 1e-3

torch.set_num_threads(2)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tandem(*arguments, text=None):
    done = forked_tandem(*arguments, text=text)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request, tmp_path_factory):
    """A model without a chat template, so that both sides read plain texts, and with a padding token of its own."""
    directory = tmp_path_factory.mktemp("models") / request.param
    made = make_model(request.param, directory, seed=3)
    made.config.pad_token_id = 0
    made.save_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token, tokenizer.bos_token, tokenizer.chat_template = "<|endoftext|>", None, None
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    return directory


def make_pairs():
    rng = random.Random(5)
    words = "quick brown fox lazy dog weather helpful number system answer".split()
    pairs = []
    for i in range(PAIRS):
        text = [" " + " ".join(rng.choice(words) for _ in range(rng.randint(1, 5))) for _ in range(2)]
        pairs.append({"prompt": f"what is {i} * {rng.randint(1, 99)}?", "chosen": text[0] + " yes", "rejected": text[1] + " no"})
    return pairs


def losses_of_trl(trainer_class, config_class, model, rows, directory, **options):
    losses = []

    class Recording(trainer_class):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            losses.append(float(loss))
            return loss

    config = config_class(
        output_dir=str(directory), per_device_train_batch_size=BATCH, max_steps=UPDATES, learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch",
        gradient_checkpointing=False, bf16=False, fp16=False, use_cpu=True, report_to="none", save_strategy="no",
        train_sampling_strategy="sequential", dataloader_num_workers=0, disable_tqdm=True, **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    is_reward = trainer_class is RewardTrainer
    kind = transformers.AutoModelForSequenceClassification if is_reward else transformers.AutoModelForCausalLM
    more = {"num_labels": 1} if is_reward else {}
    loaded = kind.from_pretrained(model, dtype=torch.float32, **more)
    Recording(model=loaded, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train()
    return losses


def ours(command, model, rows, directory, *flags):
    """The lines of metrics.jsonl."""
    data, out = write_lines(directory / "rows.jsonl", rows), directory / "out"
    tandem(command, "--model", model, "--data", data, "--out", out, "--shuffle", "false", "--batch", BATCH, "--epochs", 2,
           "--max-updates", UPDATES, "--lr", LEARNING_RATE, "--decay", "constant", "--warmup", 0, *flags)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def check(lines, losses):
    mine = [line["loss"] for line in lines]
    assert len(mine) == len(losses) == UPDATES
    np.testing.assert_allclose(mine, losses, rtol=0, atol=1e-4)
    assert max(losses) - min(losses) > 1e-3  # or nothing was trained


@pytest.mark.parametrize("loss, options", [("sigmoid", ["dpo"]), ("hinge", ["dpo_hinge"]), ("ipo", ["ipo"]),
                                           ("robust", ["robust", "--label-smoothing", "0.1"]), ("apo_zero", ["apo_zero"])])
def test_dpo(model, tmp_path, loss, options):
    pairs = make_pairs()
    smoothing = {"label_smoothing": 0.1} if loss == "robust" else {}
    losses = losses_of_trl(DPOTrainer, DPOConfig, model, pairs, tmp_path / "trl", loss_type=[loss], beta=0.3, max_length=None,
                           **smoothing)
    lines = ours("train-preferences", model, pairs, tmp_path, "--loss", *options, "--beta", "0.3")
    check(lines, losses)
    assert lines[-1]["rewards/margins"] == pytest.approx(lines[-1]["rewards/chosen"] - lines[-1]["rewards/rejected"], abs=1e-6)


@pytest.mark.parametrize("options", [{"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.5, "beta": 2.0},
                                     {"loss_type": "sigmoid", "cpo_alpha": 1.0, "beta": 0.1}])
def test_simpo_and_cpo(model, tmp_path, options):
    pairs = make_pairs()
    losses = losses_of_trl(CPOTrainer, CPOConfig, model, pairs, tmp_path / "trl", max_length=256, **options)
    name = "simpo" if options["loss_type"] == "simpo" else "cpo"
    check(ours("train-preferences", model, pairs, tmp_path, "--loss", name), losses)


def test_orpo(model, tmp_path):
    pairs = make_pairs()
    losses = losses_of_trl(ORPOTrainer, ORPOConfig, model, pairs, tmp_path / "trl", beta=0.1, max_length=256)
    check(ours("train-preferences", model, pairs, tmp_path, "--loss", "orpo"), losses)


def test_kto(model, tmp_path):
    pairs = make_pairs()
    rows = [{"prompt": pair["prompt"], "completion": pair["chosen" if i % 2 else "rejected"], "label": bool(i % 2)}
            for i, pair in enumerate(pairs)]
    losses = losses_of_trl(KTOTrainer, KTOConfig, model, rows, tmp_path / "trl", beta=0.1, max_length=None)
    lines = ours("train-preferences", model, rows, tmp_path, "--loss", "kto")
    check(lines, losses)
    assert any(line["kl"] > 0 for line in lines)


@pytest.fixture
def reward_start(model, tmp_path):
    """The trunk of `model` with a score head."""
    torch.manual_seed(1)
    start = transformers.AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    directory = tmp_path / "start"
    start.save_pretrained(directory)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(directory)
    return directory


def test_reward_model(reward_start, tmp_path):
    pairs = make_pairs()
    losses = losses_of_trl(RewardTrainer, RewardConfig, reward_start, pairs, tmp_path / "trl", max_length=None,
                           center_rewards_coefficient=0.01)
    held_out = write_lines(tmp_path / "held_out.jsonl", [{"prompt": "held out?", "chosen": " a", "rejected": " b"}])
    lines = ours("train-reward-model", reward_start, pairs, tmp_path, "--center-rewards-coefficient", "0.01",
                 "--held-out-data", held_out)
    check(lines, losses)


def scores_of_transformers(directory, texts, is_process=False):
    kind = transformers.AutoModelForTokenClassification if is_process else transformers.AutoModelForSequenceClassification
    loaded, notes = kind.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"], notes
    with torch.no_grad():
        return [loaded.eval()(input_ids=torch.tensor([ids])).logits[0] for ids in texts]


@pytest.mark.parametrize("heads", [1, 3])
def test_transformers_reads_a_reward_model_and_scores_as_we_do(model, tmp_path, heads):
    ours("train-reward-model", model, make_pairs(), tmp_path, "--heads", heads, "--held-out", "0.2")
    out = tmp_path / "out"
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"][0].endswith("ForSequenceClassification") and config["num_labels"] == heads
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.pad_token_id == config["pad_token_id"] != config["eos_token_id"]
    rows = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in make_pairs()[:6]]
    texts = [tokenizer(row["prompt"])["input_ids"] + tokenizer(row["completion"])["input_ids"] + [config["eos_token_id"]]
             for row in rows]
    expected = torch.stack(scores_of_transformers(out, texts))
    answers = [json.loads(line) for line in
               tandem("score-rewards", "--model", out, text="".join(json.dumps(row) + "\n" for row in rows)).stdout.splitlines()]
    np.testing.assert_allclose([answer["reward"] for answer in answers], expected.mean(1), atol=1e-4)
    # A batch that transformers pads gives the same.
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(out, dtype=torch.float32).eval()
    batch = tokenizer.pad({"input_ids": texts}, return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(loaded(**batch).logits, expected, atol=1e-4)
    if heads == 1:
        return
    np.testing.assert_allclose([answer["rewards"] for answer in answers], expected, atol=1e-4)
    np.testing.assert_allclose([answer["disagreement"] for answer in answers], expected.std(1, unbiased=False), atol=1e-4)
    assert min(answer["disagreement"] for answer in answers) > 1e-3  # the heads differ
    cautious = tandem("score-rewards", "--model", out, "--ensemble", "mean_minus_std", "--std-weight", 2,
                      text=json.dumps(rows[0]) + "\n")
    assert json.loads(cautious.stdout)["reward"] == pytest.approx(
        float(expected[0].mean() - 2 * expected[0].std(unbiased=False)), abs=1e-4)


def test_a_process_reward_model_scores_the_ends_of_steps(model, tmp_path):
    rng = random.Random(2)
    rows = []
    for i in range(24):
        labels = [rng.randint(0, 1) for _ in range(rng.randint(1, 4))]
        rows.append({"prompt": f"what is {i}?", "steps": ["the lazy answer" if label else "a brown fox" for label in labels], "labels": labels})
    lines = ours("train-reward-model", model, rows, tmp_path, "--process", "--held-out", "0.25")
    assert lines[-1]["loss"] < lines[0]["loss"]
    out = tmp_path / "out"
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    row = {"prompt": "what is 7?", "steps": ["the lazy answer", "a brown fox"]}
    first, second = tokenizer("the lazy answer\n")["input_ids"], tokenizer("a brown fox")["input_ids"]
    prompt = tokenizer(row["prompt"])["input_ids"]
    logits = scores_of_transformers(out, [prompt + first + second], is_process=True)[0]
    expected = torch.sigmoid(logits[[len(prompt) + len(first) - 1, -1], 0])
    answer = json.loads(tandem("score-rewards", "--model", out, text=json.dumps(row) + "\n").stdout)
    np.testing.assert_allclose(answer["steps"], expected, atol=1e-4)
    assert answer["reward"] == pytest.approx(float(expected.min()), abs=1e-4)
    report = json.loads((out / "reward_model.json").read_text())
    assert report["kind"] == "process" and report["held_out"]["num"] > 0


def test_transformers_reads_a_model_of_train_preferences(model, tmp_path):
    ours("train-preferences", model, make_pairs(), tmp_path, "--loss", "dpo")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    start = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    moved = [float((a - b).abs().max().detach()) for a, b in zip(loaded.parameters(), start.parameters())]
    assert max(moved) > 1e-4
