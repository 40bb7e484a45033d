#!/usr/bin/env python3
"""The study of algorithms: every algorithm on two tasks at equal sampled completions, losses of pairs beside TRL's, and every algorithm
under an engine gap, corrected and not. `make study-algorithms` makes all of it; what was made is not made again.

    python tests/studies/algorithms.py --tandem build/release/bin/tandem --out runs/study [--parts compare,preferences,reward_models,gap]
        [--seeds 3] [--tasks digits,sums] [--algorithms grpo,ppo] [--quick] [--docs]

--quick makes a few steps of a few runs of every part in some minutes: it shows that all of it works, and its numbers say nothing.
--docs writes tables and figures into docs/research and docs/figures. One run at a time, on two threads.
"""
import argparse
import pathlib
import sys
import time

import study_pages
import study_preferences
import study_reward_models
from study_runs import ALGORITHMS, GAPS, OF_STEPS, TASKS, Study, make_run

PARTS = ("compare", "preferences", "reward_models", "gap")
GAP_TASK = "digits"  # the cheaper one
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
                if "gap" in args.parts and task == GAP_TASK:
                    runs.append((task, algorithm, seed, "healthy", True))
                    runs += [(task, algorithm, seed, gap, corrected) for gap in args.gaps for corrected in (False, True)]
    return runs


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tandem", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-trl", action="store_true", help="train on pairs with Tandem alone")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    for name, known in (("parts", PARTS), ("tasks", TASKS), ("algorithms", ALGORITHMS)):
        setattr(args, name, getattr(args, name).split(","))
        unknown = [x for x in getattr(args, name) if x not in known]
        if unknown:
            parser.error(f"--{name} knows {', '.join(known)}, and not {', '.join(unknown)}")
    if args.quick and args.docs:
        parser.error("the numbers of --quick say nothing: leave --docs out")
    args.gaps = [gap for gap in GAPS if gap not in ("none", "healthy")]
    args.losses = study_preferences.LOSSES
    if args.quick:
        args.seeds, args.gaps, args.losses = 1, ["staleness"], ("dpo",)
    return args


def main():
    args = read_arguments()
    study = Study(args.tandem, args.out, args.quick, args.threads)
    results, rows, failed, start = [], [], [], time.monotonic()
    runs = planned(args)
    for number, run in enumerate(runs, 1):
        try:
            results.append(make_run(study, *run))
        except RuntimeError as error:  # the others go on, and the command fails at the end
            failed.append(f"{run}: {error}")
            print(failed[-1], file=sys.stderr, flush=True)
            continue
        print(f"[{number}/{len(runs)}, {time.monotonic() - start:.0f} s] {'.'.join(map(str, run))}: held-out "
              f"{results[-1]['held_out']['sampled']:.2f}, sampled {results[-1]['curve'][-1][1]:.2f}, {results[-1]['seconds']} s", flush=True)
    if "preferences" in args.parts:
        for seed in range(1, args.seeds + 1):
            for loss in args.losses:
                try:
                    rows.append(study_preferences.make_row(study, loss, seed, beside_trl=not args.without_trl))
                except RuntimeError as error:
                    failed.append(f"{loss} {seed}: {error}")
                    print(failed[-1], file=sys.stderr, flush=True)
                    continue
                print({key: rows[-1].get(key) for key in ("loss", "seed", "tandem", "trl")}, flush=True)
    learned = []
    if "reward_models" in args.parts:
        for seed in range(1, args.seeds + 1):
            for variant in list(study_reward_models.VARIANTS)[:1 if args.quick else None]:
                try:
                    learned.append(study_reward_models.make_policy(study, variant, seed))
                except RuntimeError as error:
                    failed.append(f"reward model {variant} {seed}: {error}")
                    print(failed[-1], file=sys.stderr, flush=True)
                    continue
                print({key: learned[-1][key] for key in ("variant", "seed", "accuracy", "best_gold", "last_gold", "held_out")}, flush=True)
    study_pages.write(results, rows, learned, study.out, args.docs and not failed)
    print(f"{study.out / 'tables.md'}: {len(results)} runs, {len(rows)} of pairs, {len(learned)} of reward models, {len(failed)} failed, {time.monotonic() - start:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
