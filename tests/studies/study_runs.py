"""Runs of the study of algorithms: what each algorithm, task and engine gap is in a run file, and one run with its result.

A result is a JSON file that names its settings. A run whose file is there with the same settings is not made again.
"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

# Settings of trainer.* that an algorithm has beside its preset. KL terms are off (the start is a weak policy that every run must
# leave), so that no run needs a reference policy but those of preferences.
ALGORITHMS = {
    "grpo": {"preset": "grpo", "loss.kl_coefficient": 0},
    "dr_grpo": {"preset": "dr_grpo"},
    "dapo": {"preset": "dapo"},
    "rloo": {"preset": "rloo", "loss.kl_coefficient": 0, "loss.kl_place": "loss"},
    "remax": {"preset": "remax", "loss.kl_coefficient": 0, "loss.kl_place": "loss"},
    "reinforce_pp": {"preset": "reinforce_pp", "loss.kl_coefficient": 0, "loss.kl_place": "loss"},
    "ppo": {"preset": "ppo", "loss.kl_coefficient": 0, "loss.kl_place": "loss", "num_minibatches": 2,
            "critic.optimizer.learning_rate": 1e-3},
    "ppo_steps": {"preset": "ppo", "loss.kl_coefficient": 0, "loss.kl_place": "loss", "num_minibatches": 2,
                  "critic.optimizer.learning_rate": 1e-3},
    "online_dpo": {"preset": "online_dpo"},
    "raft": {"preset": "raft", "advantage.kind": "correct_only"},  # rewards are 0 and 1: the best of a group may be wrong
}
TITLES = {"grpo": "GRPO", "dr_grpo": "Dr. GRPO", "dapo": "DAPO", "rloo": "RLOO", "remax": "ReMax", "reinforce_pp": "REINFORCE++",
          "ppo": "PPO with GAE", "ppo_steps": "PPO with process rewards", "online_dpo": "online DPO", "raft": "RAFT"}
OF_STEPS = {"ppo_steps"}  # rewarded for each line; tasks of one line have none
PAIRS = {"online_dpo"}    # groups of two: as many completions, more prompts

# The example that prepares a task with epochs of its supervised warm-up, and the size of its runs; runs under a gap are shorter.
# AdamW's first updates are large, and a constant rate ends in noise: the learning rate rises over ten updates and falls to 0.
TASKS = {
    "digits": {"script": "small.sh", "epochs": 120, "prompts": 24, "completions": 8, "steps": 100, "learning_rate": 3e-4},
    "sums": {"script": "sums.sh", "epochs": 45, "prompts": 24, "completions": 8, "steps": 100, "gap_steps": 25, "learning_rate": 2e-4},
}
TASK_TITLES = {"digits": "sums of two digits", "sums": "sums of three digits, a line for each addition"}

# What is wrong with the engine: fault parameters of the rollout server (docs/calibration.md), behind its claims. Runs under a gap
# are shorter (gap_steps), and so are those of `healthy`, which they are compared with.
GAPS = {
    "none": {},
    "healthy": {},
    "staleness": {"stale_versions": 4},
    "temperature": {"temperature": 0.9},
    "noise": {"logit_noise": 0.3},
}
GAP_TITLES = {"staleness": "weights of 4 pushes before", "temperature": "undisclosed temperature 0.9",
              "noise": "logit noise of 0.3 (as of an int8 engine)"}


def correction(algorithm, corrected):
    """What a run does about the gap: the truncated weight of each token, or of each pair; or nothing."""
    if not corrected:
        return {"correction.mode": "measure_only", "correction.kind": "off"}
    kind = "sequence_tis" if algorithm in PAIRS else "token_tis"
    return {"correction.mode": "decoupled", "correction.kind": kind, "correction.max_weight": 2}


def nested(settings):
    """{"loss.kind": 1} -> {"loss": {"kind": 1}}"""
    tree = {}
    for name, value in settings.items():
        *sections, last = name.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return tree


class Study:
    """Where the study lies, and with which programs it is made."""

    def __init__(self, tandem, out, quick=False, threads=1, jobs=1):
        self.tandem, self.quick = pathlib.Path(tandem).resolve(), quick
        self.out = pathlib.Path(out).resolve() / ("quick" if quick else "")  # what is made quickly is never taken for the study's
        self.threads, self.all_threads = threads, threads * jobs
        self.results = self.out / "results"
        self.results.mkdir(parents=True, exist_ok=True)
        self.children, self.stopping = set(), False

    def run(self, *command, **options):
        """What a command prints. Raises RuntimeError where it fails or the study stops. Any thread may call it."""
        if self.stopping:
            raise RuntimeError("the study stops")
        with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                              **options) as child:
            self.children.add(child)
            out, err = child.communicate()
            self.children.discard(child)
        if child.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}\nended with {child.returncode}\n{out[-1000:]}{err[-3000:]}")
        return out

    def stop(self):
        """Ends the commands that run and starts no more."""
        self.stopping = True
        for child in list(self.children):
            child.terminate()

    def prepare(self, task):
        """The folder of a task: its problems, and the model that every run starts from."""
        epochs = str(TASKS[task]["epochs"])
        folder = self.out / "tasks" / f"{task}.{epochs}"  # part of every run file, so runs from another start are made again
        if not (folder / "model" / "config.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            self.run("sh", EXAMPLES / TASKS[task]["script"], "--prepare", env={**os.environ, "TANDEM": str(self.tandem), "OUT": str(folder),
                                                                                         "EPOCHS": epochs})
        return folder


def run_file(study, task, algorithm, seed, gap, corrected):
    """The whole run file of a run, as a dictionary (JSON is YAML)."""
    spec, folder = TASKS[task], study.prepare(task)
    of_steps = algorithm in OF_STEPS
    completions = 2 if algorithm in PAIRS else spec["completions"] - (algorithm == "remax")  # its greedy one is sampled too
    total = spec["prompts"] * spec["completions"]
    steps = spec["steps" if gap == "none" else "gap_steps"]
    settings = {
        **ALGORITHMS[algorithm], **correction(algorithm, corrected),
        "run.out": str(study.out / "runs"), "run.name": run_name(task, algorithm, seed, gap, corrected),
        "model": str(folder / "model"), "seed": seed, "threads": study.threads,
        "steps": 4 if study.quick else steps,
        "prompts_per_step": total // 2 if algorithm in PAIRS else spec["prompts"], "completions_per_prompt": completions,
        "sampling.temperature": 1, "sampling.max_new_tokens": 8 if task == "digits" else 20,
        "data.train": str(folder / "train.jsonl"), "data.eval": str(folder / "held_out.jsonl"),
        "reward.number_partial": 0,
        "optimizer.learning_rate": spec["learning_rate"], "optimizer.max_grad_norm": 1, "optimizer.warmup_updates": 10,
        "optimizer.decay": "linear", "optimizer.decay_updates": steps * ALGORITHMS[algorithm].get("num_minibatches", 1),
        "client.groups_in_flight": 64, "eval.at_start": False, "eval.at_end": False, "probe.every": 0,
    }
    tree = {"launch": {"num_servers": 1}, "server": {"model": str(folder / "model"),
                                                    "engine": {"dtype": "fp32", "kv_capacity_tokens": 16384, "num_threads": study.threads}},
            "trainer": nested(settings)}
    tree["trainer"]["reward"]["weights"] = {"subprocess": 1} if of_steps else {"number_answer": 1}
    if of_steps:
        tree["trainer"]["reward"]["subprocess"] = {"command": ["python3", str(EXAMPLES / "sums_reward.py")], "workers": 1,
                                                   "batch_size": 256}
    if GAPS[gap]:
        tree["drift"] = {"inject": GAPS[gap]}
    return tree


def run_name(task, algorithm, seed, gap, corrected):
    return f"{task}.{algorithm}.{gap}.{'corrected' if corrected else 'uncorrected'}.{seed}"


def curve_of(metrics):
    """(completion tokens sampled so far, share of the step's completions that were right) after each step."""
    points, tokens = [], 0
    for line in metrics:
        if "reward/mean" not in line:
            continue
        tokens += line["throughput/sampled_tokens_per_s"] * line["time/rollout"]
        part = line.get("reward/part/number_answer", line.get("reward/part/subprocess"))
        points.append((round(tokens), part))
    return points


def mean_of(metrics, name):
    values = [line[name] for line in metrics if line.get(name) is not None]
    return sum(values) / len(values) if values else None


def make_run(study, task, algorithm, seed, gap="none", corrected=True):
    """The result of a run, made or read."""
    tree = run_file(study, task, algorithm, seed, gap, corrected)
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]
    name = tree["trainer"]["run"]["name"]
    path = study.results / f"{name}.json"
    if path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["settings"] == digest:
            return result
    directory = study.out / "runs" / name
    shutil.rmtree(directory, ignore_errors=True)
    (study.out / "files").mkdir(exist_ok=True)
    config = study.out / "files" / f"{name}.yaml"
    config.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    start = time.monotonic()
    study.run(study.tandem, "run", config, "--clean")
    seconds = time.monotonic() - start
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    exported = directory / "model"
    study.run(study.tandem, "export", directory, "--out", exported)
    result = {"task": task, "algorithm": algorithm, "seed": seed, "gap": gap, "corrected": corrected, "settings": digest,
              "seconds": round(seconds, 1), "held_out": score(study, task, exported), "curve": curve_of(metrics),
              "drift": {key: mean_of(metrics, key) for key in ("drift/k3", "correction/mean_weight", "pairs/ess")}}
    shutil.rmtree(directory)  # a gigabyte of checkpoints over all runs
    path.write_text(json.dumps(result), encoding="utf-8")
    return result


def draw(study, task, steps):
    """The directory of a run that samples groups of the start and changes nothing that matters."""
    tree = run_file(study, task, "grpo", 1, "none", True)
    tree["trainer"]["steps"], tree["trainer"]["run"]["name"] = steps, "pairs"
    tree["trainer"]["optimizer"]["learning_rate"] = 1e-12
    config = study.out / "pairs.yaml"
    config.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    study.run(study.tandem, "run", config, "--clean")
    return study.out / "runs" / "pairs"


def score(study, task, model):
    """Share of right completions on the held-out problems: greedy, and of eight sampled ones each, which is what training raises. A
    healthy engine says so, whatever gap a run had."""
    folder = study.prepare(task)
    line = json.loads(study.run(study.tandem, "eval", "--model", model, "--data", folder / "held_out.jsonl", "--max-new-tokens",
                                20, "--group-size", 8, "--reward", "last_number", "--threads", study.threads))
    return {"greedy": line["greedy_share_correct"], "sampled": line["sampled"]}
