#!/usr/bin/env python3
"""The study of quantised rollouts: bf16, int8, fp8 and int4 servers under five corrections on two tasks, what one captured step says
beforehand, and the time of a step. `make study-quantised` makes all of it; what was made is not made again.

    python tests/studies/quantised/quantised.py --tandem build/release/bin/tandem --out runs/study [--parts replay,train,time]
        [--seeds 3] [--tasks demo,sums] [--formats bf16,int8,int8w,fp8,int4] [--quick] [--docs]

--quick makes a few steps of one seed in some minutes: it shows that all of it works, and its numbers say nothing. --docs writes
tables and figures into docs/research and docs/figures. Runs go one at a time on all threads. Curves do not depend on what else the
machine does; times do: make `--parts time` on a quiet machine, where formats go by turns.
"""
import argparse
import functools
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import quantised_pages  # noqa: E402
from algorithms import Attempts, split_choices  # noqa: E402
from quantised_runs import FORMATS, TASKS, TRAINED, Study, best_of, replay, time_of, train  # noqa: E402

PARTS = ("replay", "train", "time")


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tandem", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    split_choices(parser, args, {"parts": PARTS, "tasks": TASKS, "formats": FORMATS})
    if args.quick:
        args.seeds = 1
    return args


def main():
    args = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    study = Study(args.tandem, args.out, args.quick, threads=2)
    attempts = Attempts(study)
    replays = attempts.side_by_side(1, [(f"replay {task} {form}", functools.partial(replay, study, task, form))
                                        for task in args.tasks for form in args.formats if "replay" in args.parts or "train" in args.parts],
                                    lambda result: f"k3 {result['k3']:.2g}, best: {best_of(result)}")
    best = {(result["task"], result["format"]): best_of(result) for result in replays}
    # Seed by seed, so that an interrupted study has whole seeds.
    runs = [(task, seed, form, correction) for seed in range(1, args.seeds + 1) for task in args.tasks for form in args.formats
            for correction in dict.fromkeys((*TRAINED, best.get((task, form), "TIS")))] if "train" in args.parts else []
    curves = attempts.side_by_side(1, [(" ".join(map(str, run)), functools.partial(train, study, *run)) for run in runs],
                                   lambda result: f"held out {result['held_out']:.2f}, last {result['curve'][-1]:.2f}")
    times = attempts.side_by_side(1, [(f"time {task} {form} {repeat}", functools.partial(time_of, study, task, form, repeat))
                                      for task in args.tasks for repeat in range(1, args.seeds + 1) for form in args.formats
                                      if "time" in args.parts], lambda result: f"{result['step']:.2f} s a step")
    quantised_pages.write(replays, curves, times, best, study.out, args.docs and not attempts.failed)
    if attempts.failed:
        print("failed: " + ", ".join(attempts.failed), file=sys.stderr)
    print(f"{study.out / 'quantised.md'}: {len(replays)} captured steps, {len(curves)} runs, {len(times)} timings, {len(attempts.failed)} failed")
    sys.exit(1 if attempts.failed else 0)


if __name__ == "__main__":
    main()
