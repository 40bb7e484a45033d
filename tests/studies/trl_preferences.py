"""Trains on pairs with TRL, and measures what either side has trained, for study_preferences.py: a request as JSON on stdin, the
result as the last line of stdout."""
import json
import os
import sys
import time

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from datasets import Dataset  # noqa: E402


def trainer_of(loss):
    """(config class, trainer class, options) of a loss. SimPO is CPO's trainer without its NLL term."""
    if loss in ("dpo", "ipo"):
        from trl import DPOConfig, DPOTrainer
        return DPOConfig, DPOTrainer, {"loss_type": "sigmoid" if loss == "dpo" else "ipo", "beta": 0.1}
    if loss == "kto":
        from trl import KTOConfig, KTOTrainer
        return KTOConfig, KTOTrainer, {"beta": 0.1}
    if loss == "simpo":
        from trl.experimental.cpo import CPOConfig, CPOTrainer
        return CPOConfig, CPOTrainer, {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 0.5}
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
    return ORPOConfig, ORPOTrainer, {"beta": 0.1}


def read(path, loss):
    with open(path, encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    if loss == "kto":
        pairs = [{"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
                 for pair in pairs for side in ("chosen", "rejected")]
    return Dataset.from_list(pairs)


@torch.no_grad()
def accuracy(model, tokenizer, path):
    """Share of held-out pairs whose chosen completion the model finds likelier than the rejected one, per token."""
    def mean_logprob(prompt, reply):
        before = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        ids = before + tokenizer(reply[0]["content"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        logits = model(torch.tensor([ids])).logits[0, len(before) - 1:-1]
        return torch.log_softmax(logits.float(), -1).gather(-1, torch.tensor(ids[len(before):])[:, None]).mean()
    with open(path, encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    better = [float(mean_logprob(pair["prompt"], pair["chosen"]) > mean_logprob(pair["prompt"], pair["rejected"])) for pair in pairs]
    return sum(better) / len(better)


def main():
    request = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    if request.get("measure_only"):
        model = transformers.AutoModelForCausalLM.from_pretrained(request["out"], dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(request["out"])
        return print(json.dumps({"accuracy": accuracy(model, tokenizer, request["held_out"])}))
    print(json.dumps(train(request)))


def train(request):
    config_class, trainer_class, options = trainer_of(request["loss"])
    model = transformers.AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["model"])
    config = config_class(output_dir=request["out"], per_device_train_batch_size=request["batch"], num_train_epochs=request["epochs"],
                          learning_rate=request["learning_rate"], lr_scheduler_type="constant", max_grad_norm=1.0, max_length=64,
                          gradient_checkpointing=False, bf16=False, use_cpu=True, report_to="none", save_strategy="no",
                          seed=request["seed"], disable_tqdm=True, logging_strategy="no", **options)
    start = time.monotonic()
    trainer = trainer_class(model=model, args=config, train_dataset=read(request["train"], request["loss"]), processing_class=tokenizer)
    begin = time.monotonic()
    trainer.train()
    end = time.monotonic()
    trainer.model.save_pretrained(request["out"])
    tokenizer.save_pretrained(request["out"])
    return {"seconds": round(end - start, 1), "loop_seconds": round(end - begin, 1), "accuracy": accuracy(trainer.model.eval(), tokenizer, request["held_out"])}


if __name__ == "__main__":
    main()
