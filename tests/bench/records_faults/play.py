"""Makes captures with known faults: draws, scores, then one directory a case under runs/faults/cases.

    OMP_NUM_THREADS=1 nice .deps/venv/bin/python tests/bench/records_faults/play.py [--part I/N] [--write]

`--part` computes a share of the work only, so that several processes divide it, once runs/faults/weights is there; `--write` computes nothing
and writes the cases whose numbers are there. Without either: everything.
"""
from __future__ import annotations

import argparse

import pools


def compute(part: int, parts: int) -> None:
    """The draws and scores of one part. All scores of one pool of draws go to one process; those of "base" and "bf16" are dealt out."""
    pools.draws("base")
    pools.make_weights()
    own = [name for name in pools.SCORES if pools.SCORES[name][0] not in ("base", "bf16")]
    for i, draws in enumerate(pools.DRAWS):
        for name in own:
            if i % parts == part and pools.SCORES[name][0] == draws:
                pools.scores(name)
    passes: dict[str, list[str]] = {}
    for name in pools.SCORES:
        if name not in own:
            passes.setdefault(repr((pools.SCORES[name][0], pools.body_of(pools.SCORES[name][1]), pools.SCORES[name][3])), []).append(name)
    for i, names in enumerate(passes.values()):
        if i % parts == part:
            for name in names:
                pools.scores(name)
    if part == 0:
        pools.turns()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not arguments.write:
        part, parts = map(int, arguments.part.split("/"))
        compute(part, parts)
    if arguments.write or arguments.part == "0/1":
        import cases
        cases.write_all()


if __name__ == "__main__":
    main()
