"""A policy that over-optimises a learned reward: the proxy and held-out gold by the distance from the start, with one reward model,
with an ensemble of them, and with a KL budget that rolls back to the best checkpoint."""
import hashlib
import json
import math
import shutil

from study_preferences import make_pairs
from study_runs import run_file, score

TASK, MODELS, BUDGET = "digits", 3, 0.15
# A reward model that is right on most pairs and wrong where the policy goes.
TRAINING = {"--batch": 16, "--lr": 2e-4, "--epochs": 12, "--warmup": 5}
# Every step samples all problems, so that the proxy of one step compares with that of the next. The rate is large and constant, so that
# the policy goes far from the start.
POLICY = {"prompts_per_step": 86, "completions_per_prompt": 4, "steps": 80, "optimizer.learning_rate": 5e-4, "optimizer.decay": "constant"}
# Title, settings of trainer.*, and how many reward models, of seeds that follow one another.
VARIANTS = {
    "one": ("one reward model", {"reward.model.ensemble": "mean"}, 1),
    "ensemble": (f"{MODELS} reward models, mean - std", {"reward.model.ensemble": "mean_minus_std"}, MODELS),
    "budget": (f"one reward model, KL budget of {BUDGET} nats a token with roll-back",
               {"reward.model.ensemble": "mean", "alerts.kl_budget": BUDGET, "alerts.on_kl": "roll_back", "checkpoint.every": 2,
                "eval.every": 2}, 1),
}


def reward_model(study, seed):
    """(directory, accuracy on held-out pairs) of the reward model of a seed."""
    files = make_pairs(study)
    settings = hashlib.sha256(repr((TRAINING, str(files[0]))).encode()).hexdigest()[:16]
    folder = study.out / "reward_models" / f"{seed}.{settings}"
    report = folder / "reward_model.json"
    if not report.exists():
        shutil.rmtree(folder, ignore_errors=True)
        flags = [str(part) for pair in TRAINING.items() for part in pair]
        study.run(study.tandem, "train-reward-model", "--model", study.prepare(TASK) / "model", "--data", files[0], "--held-out-data",
                  files[1], "--seed", seed, "--threads", study.threads, "--out", folder, *flags)
    return folder, json.loads(report.read_text(encoding="utf-8"))["held_out"]["accuracy"]


def seeds_of_models(variant, seed):
    return range(seed, seed + VARIANTS[variant][2])


def fit(distances, gains):
    """(alpha, beta) of gain = d (alpha - beta log d), least squares: Gao et al. 2023, arXiv 2210.10760, equation 2."""
    rows = [(d, -d * math.log(d), gain) for d, gain in zip(distances, gains) if d > 0]
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in
                  ([(r[0], r[0]) for r in rows], [(r[0], r[1]) for r in rows], [(r[1], r[1]) for r in rows]))
    ay, by = sum(r[0] * r[2] for r in rows), sum(r[1] * r[2] for r in rows)
    determinant = aa * bb - ab * ab
    return ((bb * ay - ab * by) / determinant, (aa * by - ab * ay) / determinant) if abs(determinant) > 1e-12 else (math.nan, math.nan)


def make_policy(study, variant, seed):
    """The result of a run against a learned reward, made or read."""
    settings = VARIANTS[variant][1]
    models = [reward_model(study, of_model) for of_model in seeds_of_models(variant, seed)]
    accuracy = sum(accuracy for _, accuracy in models) / len(models)
    tree = run_file(study, TASK, "grpo", seed, "none", True)
    trainer = tree["trainer"]
    trainer["run"]["name"] = name = f"reward.{variant}.{seed}"
    trainer["reward"] = {"weights": {"model": 1}, "gold": ["number_answer"], "number_partial": 0, "model": {"paths": [str(path) for path, _ in models]}}
    trainer["measure_reference_kl"] = True
    for setting, value in {**POLICY, **settings, **({"steps": 4} if study.quick else {})}.items():
        *sections, last = setting.split(".")
        at = trainer
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]
    path = study.results / f"{name}.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8"))["settings"] == digest:
        return json.loads(path.read_text(encoding="utf-8"))
    directory = study.out / "runs" / name
    shutil.rmtree(directory, ignore_errors=True)
    (study.out / "files").mkdir(exist_ok=True)
    config = study.out / "files" / f"{name}.yaml"
    config.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    study.run(study.tandem, "run", config, "--clean")
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in metrics if "loss/total" in line]
    study.run(study.tandem, "export", directory, "--out", directory / "model")
    curve = [(math.sqrt(max(line["kl_reference/k3"] * line["length/mean"], 0)), line["reward/mean"], line["reward/gold"]) for line in steps]
    start = curve[0]
    alpha, beta = fit([point[0] for point in curve[1:]], [point[2] - start[2] for point in curve[1:]])
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    result = {"variant": variant, "seed": seed, "settings": digest, "accuracy": accuracy, "curve": curve, "alpha": alpha, "beta": beta,
              "best_gold": max(point[2] for point in curve), "last_gold": curve[-1][2], "last_proxy": curve[-1][1] - start[1],
              "rolled_back": [event["message"] for event in events if event["kind"] == "rolled_back"],
              "held_out": score(study, TASK, directory / "model")}
    shutil.rmtree(directory)
    path.write_text(json.dumps(result), encoding="utf-8")
    return result
