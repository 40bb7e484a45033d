"""Runs of the study of quantised rollouts: number formats of the server, corrections, tasks; one run, one captured step, one timing.

A result is a JSON file that names its settings. What is there with the same settings is not made again.
"""
import hashlib
import json
import pathlib
import shutil
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from study_runs import Study, mean_of, run_file  # noqa: E402,F401

SOLVED = 0.8
# server.engine's settings of every number format: "int8w" has int8 weights and multiplies inputs as they are, "int8" has both in int8.
FORMATS = {"bf16": {"weights": "dtype"}, "int8": {"weights": "int8"}, "int8w": {"weights": "int8", "activations": "dtype"},
           "fp8": {"weights": "fp8_e4m3"}, "int4": {"weights": "int4_group"}}

# Corrections with a fixed threshold: the method's name in `tandem drift replay`, and its settings in trainer.correction (the first
# threshold that replay lists, docs/replay.md). The first four are trained with; the best of all is what a captured step chooses.
CORRECTIONS = {
    "none": ("off", {"kind": "off"}),
    "TIS": ("tis", {"kind": "token_tis", "max_weight": 2}),
    "mask": ("icepop", {"kind": "token_mask", "min_weight": 0.5, "max_weight": 5}),
    "sequence": ("seq_tis", {"kind": "sequence_tis", "max_weight": 2}),
    "clip": ("token_clip", {"kind": "token_clip", "min_weight": 0.5, "max_weight": 5}),
    "sequence mask": ("mis", {"kind": "sequence_mask", "min_weight": 0.5, "max_weight": 2}),
    "sequence clip": ("seq_clip", {"kind": "sequence_clip", "min_weight": 0.5, "max_weight": 2}),
    "geometric": ("geo_tis", {"kind": "geometric_tis", "max_weight": 2}),
    "geometric mask": ("geo_mask", {"kind": "geometric_mask", "min_weight": 0.5, "max_weight": 2}),
}
TRAINED = ("none", "TIS", "mask", "sequence")

TASKS = ("demo", "sums")
TASK_TITLES = {"demo": "SmolLM2-135M, products of two digits (`tandem demo`)", "sums": "a model of 0.4 million weights, sums of three digits"}
STEPS = {"demo": 12, "sums": 25}


def settings_of(task, seed, number_format, correction, study):
    """What a run sets over the task's own run file."""
    settings = {f"server.engine.{key}": value for key, value in FORMATS[number_format].items()}
    settings.update({"trainer.seed": seed, "trainer.steps": 3 if study.quick else STEPS[task]})
    settings.update({f"trainer.correction.{key}": value for key, value in CORRECTIONS[correction][1].items()})
    settings.update({"trainer.capture.spread": 0, "trainer.probe.every": 0, "trainer.eval.at_start": False, "trainer.eval.at_end": False})
    return settings


def metrics_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def start(study, task, name, seed, settings):
    """Makes a run and returns its directory."""
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value).strip(chr(34))}")]
    out = study.out / "runs"
    shutil.rmtree(out / name, ignore_errors=True)
    if task == "demo":
        study.run(study.tandem, "demo", "--seed", seed, "--out", out, "--name", name, "--clean", *flags)
        return out / name
    tree = run_file(study, "sums", "grpo", seed, "healthy", True)
    tree["server"]["engine"]["dtype"] = "bf16"
    tree["trainer"]["push"] = {"rounding": "dither"}
    tree["trainer"]["run"]["name"] = name
    (study.out / "files").mkdir(exist_ok=True)
    config = study.out / "files" / f"{name}.yaml"
    config.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    study.run(study.tandem, "run", config, "--clean", *flags)
    return out / name


def kept(study, name, settings, make):
    """The result of `make()`, or that of an earlier call with equal settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    path = study.results / f"quantised.{name}.json"
    if path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["settings"] == digest:
            return result
    result = {**make(), "settings": digest}
    path.write_text(json.dumps(result), encoding="utf-8")
    return result


def train(study, task, seed, number_format, correction):
    """A learning curve, and the final weights as an engine that does not quantise scores them."""
    name = f"{task}.{number_format}.{correction.replace(' ', '_')}.{seed}"
    settings = settings_of(task, seed, number_format, correction, study)

    def make():
        directory = start(study, task, name, seed, settings)
        rows = [row for row in metrics_of(directory) if "loss/total" in row]
        study.run(study.tandem, "export", directory, "--out", directory / "model")
        data = (study.out / "runs" / "data" / f"multiply-{seed}" if task == "demo" else study.prepare("sums")) / "held_out.jsonl"
        scored = json.loads(study.run(study.tandem, "eval", "--model", directory / "model", "--data", data, "--max-new-tokens",
                                      16 if task == "demo" else 20, "--group-size", 8, "--reward", "last_number"))
        shutil.rmtree(directory)  # gigabytes of checkpoints over all runs
        return {"task": task, "seed": seed, "format": number_format, "correction": correction, "held_out": scored["sampled"],
                "curve": [row["reward/part/number_answer"] for row in rows],
                "k3": mean_of(rows, "drift/k3"), "ess": mean_of(rows, "drift/ess_fraction"),
                "sequence_ess": mean_of(rows, "drift/sequence_ess_fraction")}

    return kept(study, name, settings, make)


def replay(study, task, number_format):
    """The first step under every correction, from one capture of it: bias, noise and ESS of the gradient."""
    name = f"{task}.{number_format}.capture"
    settings = {**settings_of(task, 1, number_format, "none", study), "trainer.steps": 1, "trainer.capture.spread": 1}

    def make():
        directory = start(study, task, name, 1, settings)
        methods = ",".join(method for method, _ in CORRECTIONS.values())
        page = json.loads(study.run(study.tandem, "drift", "replay", directory / "captures" / "step_1", "--methods", methods, "--json"))
        row = [row for row in metrics_of(directory) if "loss/total" in row][0]
        shutil.rmtree(directory)
        rows = {r["method"]: r for r in page["rows"]}
        return {"task": task, "format": number_format, "withheld": page["exact_withheld"], "k3": row["drift/k3"],
                "ess": row["drift/ess_fraction"], "sequence_ess": row["drift/sequence_ess_fraction"], "pareto_k": row["drift/pareto_k"],
                "methods": {title: effect(rows[method], rows, bool(page["exact_withheld"])) for title, (method, _) in CORRECTIONS.items() if method in rows}}

    return kept(study, name, settings, make)


def effect(row, rows, withheld):
    """Bias and noise of a method's gradient g, relative to the reference's |r|: |g - r| / |r| from norms and cosine, and the standard
    error over groups. The reference is `exact`, or the token-wise product without a ceiling where replay withholds that."""
    name = "exact_token" if withheld else "exact"
    reference, cosine = rows[name], row[f"cosine_to_{name}"]["value"]
    if cosine is None:  # the method keeps tokens of too few groups
        return None
    ratio = row["gradient_norm"] / reference["gradient_norm"]
    bias = max(0.0, ratio * ratio + 1 - 2 * ratio * cosine) ** 0.5
    if row["variance_over_groups"] is None:  # too few groups have a token left
        return {"bias": bias, "noise": None, "error": None, "ess": row["ess_fraction"]["value"], "kept": row["kept"]["value"]}
    noise = row["variance_over_groups"] ** 0.5 / reference["gradient_norm"]
    return {"bias": bias, "noise": noise, "error": (bias ** 2 + noise ** 2) ** 0.5, "ess": row["ess_fraction"]["value"],
            "kept": row["kept"]["value"]}


def best_of(replayed):
    """The correction whose gradient has the least root mean square error on the captured step."""
    known = {title: effect["error"] for title, effect in replayed["methods"].items() if effect and effect["error"] is not None}
    return min(known, key=known.get)


def time_of(study, task, number_format, repeat):
    """Seconds of the parts of a step, and tokens per second of its rollouts, in a short run of its own."""
    name = f"{task}.{number_format}.time.{repeat}"
    settings = {**settings_of(task, 1, number_format, "TIS", study), "trainer.steps": 3 if study.quick else 6, "repeat": repeat}

    def make():
        directory = start(study, task, name, 1, {key: value for key, value in settings.items() if key != "repeat"})
        rows = [row for row in metrics_of(directory) if "loss/total" in row][2:]
        shutil.rmtree(directory)

        def median(key):
            return statistics.median(row[key] for row in rows)

        return {"task": task, "format": number_format, "repeat": repeat, "step": median("time/step"), "rollout": median("time/rollout"),
                "update": median("time/update"), "push": median("time/push"), "tokens_per_s": median("throughput/sampled_tokens_per_s")}

    return kept(study, name, settings, make)
