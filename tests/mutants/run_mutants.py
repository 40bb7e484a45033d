#!/usr/bin/env python3
"""Applies each known bug as a patch and checks that its test fails.

Each file of patches/ is a unified diff (-p1) that starts with these lines:

    Bug: 14                                 number in docs/dev/verification.md
    Title: proximal log-prob not detached
    Target: policy_loss_test                CMake target of the test program
    Filter: *Bug14*                         gtest filter; must match at least one test

The tree is copied (tracked files only) to build/mutants/tree and built there, so the checkout is not changed. A mutant is
*caught* if its test passes without the patch and fails with it, *survived* if it passes with it, and *stale* if the patch does
not apply. The exit code is 1 unless all are caught.

    python3 tests/mutants/run_mutants.py [--only 14,19] [--table docs/dev/verification.md] [--jobs 2]
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "mutants" / "tree"
BUILD = ROOT / "build" / "mutants" / "build"
HEADER = re.compile(r"^(Bug|Title|Target|Filter): (.+)$", re.M)


class Mutant:
    def __init__(self, path):
        self.path = path
        fields = dict(HEADER.findall(path.read_text(encoding="utf-8").split("\n--- ")[0]))
        missing = {"Bug", "Title", "Target", "Filter"} - fields.keys()
        if missing:
            sys.exit(f"{path}: header lacks {', '.join(sorted(missing))}")
        self.bug, self.title = int(fields["Bug"]), fields["Title"]
        self.target, self.filter = fields["Target"], fields["Filter"]
        self.files = re.findall(r"^\+\+\+ b/(\S+)", path.read_text(encoding="utf-8"), re.M)


def all_mutants():
    return sorted((Mutant(p) for p in (ROOT / "tests" / "mutants" / "patches").glob("*.patch")),
                  key=lambda m: (m.bug, m.path.name))


def copy_tree():
    """Copies tracked files. Unchanged files keep their time, so that builds are incremental; so does build/, where cargo
    keeps what it compiled."""
    TREE.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    wanted = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    for name in sorted(wanted):
        source, copy = ROOT / name, TREE / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
            copy.touch()
    for copy in TREE.rglob("*"):
        name = copy.relative_to(TREE)
        if copy.is_file() and name.parts[0] != "build" and str(name) not in wanted:
            copy.unlink()
    for link in (".deps", "models"):
        if (ROOT / link).exists() and not (TREE / link).exists():
            (TREE / link).symlink_to(ROOT / link)


def build(targets, jobs):
    done = subprocess.run(["cmake", "--build", str(BUILD), "-j", str(jobs), "--target", *targets],
                          capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def run_test(mutant):
    """Returns True if the tests of the mutant pass. Exits if its filter matches no test."""
    try:
        done = subprocess.run([str(BUILD / "tests" / mutant.target), f"--gtest_filter={mutant.filter}"],
                              capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False
    ran = re.search(r"Running (\d+) tests?", done.stdout)
    if done.returncode == 0 and (not ran or ran.group(1) == "0"):
        sys.exit(f"{mutant.path.name}: filter {mutant.filter} matches no test of {mutant.target}")
    return done.returncode == 0


def judge(mutant, jobs):
    patch = ["patch", "-p1", "--fuzz=0", "--silent", "--no-backup-if-mismatch", "-d", str(TREE),
             "-i", str(mutant.path)]
    if subprocess.run([*patch, "--dry-run"], capture_output=True).returncode != 0:
        return "stale"
    intact = {TREE / name: (TREE / name).read_bytes() for name in mutant.files}
    subprocess.run(patch, check=True, capture_output=True)
    try:
        built, output = build([mutant.target], jobs)
        if not built:
            print(output[-2000:])
            return "does not compile"
        return "survived" if run_test(mutant) else "caught"
    finally:
        for file, content in intact.items():
            file.write_bytes(content)


TABLE_HEAD = "| bug | what | test | outcome |\n|---|---|---|---|\n"


def introduction(page):
    """The text of the page before its table, which is kept."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    if TABLE_HEAD not in text:
        sys.exit(f"{page}: no table that opens with {TABLE_HEAD.splitlines()[0]!r}: --table writes its rows anew")
    return text[:text.index(TABLE_HEAD)]


def table(rows):
    return TABLE_HEAD + "".join(f"| {mutant.bug} | {mutant.title} | `{mutant.target}` `{mutant.filter}` | {outcome} |\n"
                                for mutant, outcome in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="comma-separated bug numbers")
    parser.add_argument("--table", type=pathlib.Path, help="the page whose table of outcomes is written anew")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    mutants = all_mutants()
    if args.only and args.table:
        sys.exit("--table wants all mutants: leave --only out")
    above = introduction(args.table) if args.table else ""  # checked before the work, which takes hours
    if args.only:
        chosen = {int(n) for n in args.only.split(",")}
        mutants = [m for m in mutants if m.bug in chosen]
    if not mutants:
        sys.exit("no patch to run")
    copy_tree()
    subprocess.run(["cmake", "--preset", "release", "-B", str(BUILD)], cwd=TREE, check=True,
                   stdout=subprocess.DEVNULL)
    built, output = build(sorted({m.target for m in mutants}), args.jobs)
    if not built:
        sys.exit(output[-4000:])
    # All tests run before the first patch, because later a target may still have the previous mutant.
    healthy = {mutant.path for mutant in mutants if run_test(mutant)}
    rows = []
    for i, mutant in enumerate(mutants, 1):
        start = time.monotonic()
        sound = mutant.path in healthy
        outcome = judge(mutant, args.jobs) if sound else "fails without the bug"
        rows.append((mutant, outcome))
        print(f"[{i}/{len(mutants)}] bug {mutant.bug:>2} {mutant.title}: {outcome} "
              f"({time.monotonic() - start:.0f} s)", flush=True)
    if args.table:
        args.table.write_text(above + table(rows), encoding="utf-8")
    caught = sum(outcome == "caught" for _, outcome in rows)
    print(f"{caught} passed, {len(rows) - caught} failed")
    sys.exit(0 if caught == len(rows) else 1)


if __name__ == "__main__":
    main()
