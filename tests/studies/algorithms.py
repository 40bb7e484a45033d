#!/usr/bin/env python3
"""The study of algorithms: every algorithm on two tasks at equal sampled completions, losses of pairs beside TRL's, and every algorithm
under an engine gap, corrected and not. `make study-algorithms` makes all of it; what was made is not made again.

    python tests/studies/algorithms.py --tandem build/release/bin/tandem --out runs/study [--parts compare,preferences,reward_models,gap]
        [--seeds 3] [--tasks digits,sums] [--algorithms grpo,ppo] [--quick] [--docs] [--jobs 2]

--quick makes a few steps of a few runs of every part in some minutes: it shows that all of it works, and its numbers say nothing.
--docs writes tables and figures into docs/research and docs/figures. Two runs go at once, of one thread each.
"""
import argparse
import concurrent.futures
import functools
import pathlib
import signal
import sys
import threading
import time

import study_pages
import study_preferences
import study_reward_models
from study_runs import ALGORITHMS, GAPS, OF_STEPS, TASKS, Study, make_run

PARTS = ("compare", "preferences", "reward_models", "gap")
GAP_TASK = "sums"  # where every run learns within few steps
# Without Dr. GRPO, ReMax and PPO with process rewards, whose gradients differ from those of GRPO, RLOO and PPO in scale, baseline and
# rewards, and not in where the weight of a token enters.
GAP_ALGORITHMS = ("grpo", "dapo", "rloo", "reinforce_pp", "ppo", "online_dpo", "raft")
QUICK = {"digits": ["online_dpo"], "sums": ["grpo", "ppo_steps"]}


def planned(args):
    """(task, algorithm, seed, gap, corrected) of every run, seed by seed, so that an interrupted study has whole seeds."""
    runs = []
    for seed in range(1, args.seeds + 1):
        for task in args.tasks:
            for algorithm in args.algorithms:
                if (algorithm in OF_STEPS and task != "sums") or (args.quick and algorithm not in QUICK[task]):
                    continue
                if "compare" in args.parts:
                    runs.append((task, algorithm, seed, "none", True))
                if "gap" in args.parts and task == GAP_TASK and algorithm in GAP_ALGORITHMS:
                    runs.append((task, algorithm, seed, "healthy", True))
                    runs += [(task, algorithm, seed, gap, corrected) for gap in args.gaps for corrected in (False, True)]
    return runs


def split_choices(parser, args, known):
    """Splits options that are lists, and refuses what a study does not know; `known`: option -> its values."""
    for name, values in known.items():
        setattr(args, name, getattr(args, name).split(","))
        unknown = [x for x in getattr(args, name) if x not in values]
        if unknown:
            parser.error(f"--{name} knows {', '.join(values)}, and not {', '.join(unknown)}")
    if args.quick and args.docs:
        parser.error("the numbers of --quick say nothing: leave --docs out")


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tandem", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--threads", type=int, default=1, help="of each process of a run; losses of pairs, whose times stand beside TRL's, have jobs x threads")
    parser.add_argument("--without-trl", action="store_true", help="train on pairs with Tandem alone")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    split_choices(parser, args, {"parts": PARTS, "tasks": TASKS, "algorithms": ALGORITHMS})
    args.gaps = [gap for gap in GAPS if gap not in ("none", "healthy")]
    args.losses = study_preferences.LOSSES
    if args.quick:
        args.seeds, args.gaps, args.losses = 1, ["staleness"], ("dpo",)
    return args


class Attempts:
    """Calls that may fail: the others go on, and the command fails at the end."""

    def __init__(self, study):
        self.study, self.failed, self.start = study, [], time.monotonic()

    def side_by_side(self, jobs, calls, line_of):
        """The results of `calls`, (name, function) each, `jobs` at once, in the order given; a line for each that ends."""
        results, ended, lock = {}, 0, threading.Lock()

        def attempt(number, name, call):
            nonlocal ended
            try:
                results[number] = call()
                line = line_of(results[number])
            except RuntimeError as error:
                line = f"failed: {error}"
                self.failed.append(name)
            with lock:
                ended += 1
                print(f"[{ended}/{len(calls)}, {time.monotonic() - self.start:.0f} s] {name}: {line}", flush=True)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(attempt, number, name, call) for number, (name, call) in enumerate(calls)]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # Ctrl-C or SIGTERM
                pool.shutdown(wait=False, cancel_futures=True)
                self.study.stop()
                raise
        return [results[number] for number in sorted(results)]


def main():
    args = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    study = Study(args.tandem, args.out, args.quick, args.threads, args.jobs)
    attempts = Attempts(study)
    runs = planned(args)
    tasks = sorted({run[0] for run in runs} | ({"digits"} if {"preferences", "reward_models"} & set(args.parts) else set()))
    attempts.side_by_side(args.jobs, [(f"task {task}", functools.partial(study.prepare, task)) for task in tasks], str)
    if {"preferences", "reward_models"} & set(args.parts):
        attempts.side_by_side(1, [("pairs", functools.partial(study_preferences.make_pairs, study))], lambda files: str(files[0]))
    calls = [(".".join(map(str, run)), functools.partial(make_run, study, *run)) for run in runs]
    results = attempts.side_by_side(args.jobs, calls, lambda result: (
        f"held-out {result['held_out']['sampled']:.2f}, sampled {result['curve'][-1][1]:.2f}, {result['seconds']} s"))
    rows, learned = [], []
    if "preferences" in args.parts:  # one at a time on all threads: their times stand beside TRL's
        calls = [(f"{loss} {seed}", functools.partial(study_preferences.make_row, study, loss, seed, beside_trl=not args.without_trl))
                 for seed in range(1, args.seeds + 1) for loss in args.losses]
        rows = attempts.side_by_side(1, calls, lambda row: str({key: row.get(key) for key in ("tandem", "trl")}))
    if "reward_models" in args.parts:
        variants = list(study_reward_models.VARIANTS)[:1 if args.quick else None]
        cases = [(variant, seed) for seed in range(1, args.seeds + 1) for variant in variants]
        seeds = sorted({of_model for case in cases for of_model in study_reward_models.seeds_of_models(*case)})
        calls = [(f"reward model {seed}", functools.partial(study_reward_models.reward_model, study, seed)) for seed in seeds]
        attempts.side_by_side(args.jobs, calls, lambda made: f"{made[1]:.2f} of held-out pairs")
        calls = [(f"policy of {variant} {seed}", functools.partial(study_reward_models.make_policy, study, variant, seed)) for variant, seed in cases]
        learned = attempts.side_by_side(args.jobs, calls, lambda result: str({key: result[key] for key in ("accuracy", "best_gold", "last_gold", "held_out")}))
    study_pages.write(results, rows, learned, study.out, args.docs and not attempts.failed)
    if attempts.failed:
        print("failed: " + ", ".join(attempts.failed), file=sys.stderr)
    print(f"{study.out / 'tables.md'}: {len(results)} runs, {len(rows)} of pairs, {len(learned)} of reward models, {len(attempts.failed)} failed, "
          f"{time.monotonic() - attempts.start:.0f} s")
    sys.exit(1 if attempts.failed else 0)


if __name__ == "__main__":
    main()
