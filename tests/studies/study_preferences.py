"""Losses of pairs on pairs of the digits task, by `tandem train-preferences` and by TRL's trainers: the same model, pairs and AdamW."""
import hashlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
import time

from study_runs import draw, score

LOSSES = ("dpo", "ipo", "kto", "simpo", "orpo")
BATCH, LEARNING_RATE, PAIRS, HELD_OUT = 16, 5e-5, 800, 80


def make_pairs(study):
    """(pairs to train on, pairs held out) of a right and a wrong completion of one prompt, drawn from the start of the task."""
    folder = study.prepare("digits") / f"pairs.{PAIRS}"
    files = folder / "train.jsonl", folder / "held_out.jsonl"
    if not all(path.exists() for path in files):
        folder.mkdir(parents=True, exist_ok=True)
        directory = draw(study, "digits", steps=2 if study.quick else 20)
        problems = [json.loads(line)["prompt"] for line in (study.prepare("digits") / "train.jsonl").read_text().splitlines()]
        pairs = []
        for path in sorted((directory / "rollouts").glob("step_*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                group = json.loads(line)
                ended = [c for c in group["completions"] if c["finish_reason"] == "stop" and c["text"].strip()]  # a blank side is no side
                right = [c["text"] for c in ended if c["reward"] > 0.5]
                wrong = [c["text"] for c in ended if c["reward"] < 0.5]
                pairs += [conversation(problems[group["prompt_index"]], a, b) for a, b in zip(right, wrong)]
        random.Random(1).shuffle(pairs)
        if len(pairs) <= HELD_OUT:
            raise RuntimeError(f"only {len(pairs)} pairs were drawn, and {HELD_OUT} are held out")
        for path, part in zip(files, (pairs[HELD_OUT:HELD_OUT + PAIRS], pairs[:HELD_OUT])):
            path.write_text("".join(json.dumps(pair) + "\n" for pair in part), encoding="utf-8")
        shutil.rmtree(directory)
    return files


def conversation(problem, chosen, rejected):
    return {"prompt": [{"role": "user", "content": problem}], "chosen": [{"role": "assistant", "content": chosen}],
            "rejected": [{"role": "assistant", "content": rejected}]}


def labelled(path):
    """The file of the pairs as single completions with labels, for kto."""
    out = path.with_suffix(".labels.jsonl")
    with open(path, encoding="utf-8") as pairs, open(out, "w", encoding="utf-8") as file:
        for pair in map(json.loads, pairs):
            for side in ("chosen", "rejected"):
                file.write(json.dumps({"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}) + "\n")
    return out


def train_tandem(study, loss, seed, files, model, out):
    data, order = (labelled(files[0]), ["--shuffle", "false"]) if loss == "kto" else (files[0], [])  # TRL's KTO takes the file's order
    start = time.monotonic()
    study.run(study.tandem, "train-preferences", "--loss", loss, "--model", model, "--data", data, "--out", out, "--batch", BATCH, "--lr",
              LEARNING_RATE, "--decay", "constant", "--warmup", 0, "--seed", seed, "--epochs", 2, "--threads", study.all_threads, *order)
    seconds = round(time.monotonic() - start, 1)
    loop = json.loads((pathlib.Path(out) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["time_s"]
    return {"seconds": seconds, "loop_seconds": round(loop, 1), **with_trl({"measure_only": True, "held_out": str(files[1]), "out": str(out), "threads": study.all_threads})}


def train_trl(study, loss, seed, files, model, out):
    """Its time is that of making the trainer and training, without imports; of its loop, that of training alone."""
    return with_trl({"loss": loss, "seed": seed, "train": str(files[0]), "held_out": str(files[1]), "model": str(model), "out": str(out),
               "batch": BATCH, "learning_rate": LEARNING_RATE, "epochs": 2, "threads": study.all_threads})


def with_trl(request):
    """The answer of trl_preferences.py, in a process of its own: importing it takes longer than training."""
    done = subprocess.run([sys.executable, str(pathlib.Path(__file__).with_name("trl_preferences.py"))], input=json.dumps(request),
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"trl_preferences.py ended with {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def make_row(study, loss, seed, beside_trl):
    """One loss and seed on both sides, made or read."""
    path = study.results / f"preferences.{loss}.{seed}.json"
    settings = hashlib.sha256(repr((BATCH, LEARNING_RATE, str(make_pairs(study)[0]), HELD_OUT, study.all_threads, beside_trl)).encode()).hexdigest()[:16]
    if path.exists() and json.loads(path.read_text(encoding="utf-8"))["settings"] == settings:
        return json.loads(path.read_text(encoding="utf-8"))
    files, model = make_pairs(study), study.prepare("digits") / "model"
    row = {"loss": loss, "seed": seed, "settings": settings}
    for side, train in (("tandem", train_tandem), ("trl", train_trl)) if beside_trl else (("tandem", train_tandem),):
        out = study.out / "preferences" / f"{side}.{loss}.{seed}"
        shutil.rmtree(out, ignore_errors=True)
        row[side] = train(study, loss, seed, files, model, out)
        row[side]["score"] = score(study, "digits", out)["sampled"]
        shutil.rmtree(out)
    path.write_text(json.dumps(row), encoding="utf-8")
    return row
