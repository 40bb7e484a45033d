"""A run directory that a test writes as the trainer would, and the command that is tested on it."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
SECRET = "Bearer of-nobody"
CONFIG = """trainer:
  steps: 5
  reward: {judge: {headers: ["Authorization: Bearer of-nobody"], url: "http://me:of-nobody@judge/v1"}}
  sampling: {temperature: 1}
"""


class WrittenRun:
    def __init__(self, path, run_id="written-1"):
        self.path, self.run_id = path, run_id
        path.mkdir(parents=True)
        self.write("owner", SECRET)
        self.begin()

    def begin(self):
        self.write("config.yaml", CONFIG)
        self.write("run.json", json.dumps({"schema": 1, "run_id": self.run_id, "started_at": "2026-11-28T04:34:18.141Z",
                                           "seed": 1, "servers": [{"address": "127.0.0.1:1", "injected": []}]}))
        self.event("run_started")

    def write(self, name, text):
        (self.path / name).write_text(text, encoding="utf-8")

    def append(self, name, text):
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)

    def line(self, step, reward=None, **more):
        return json.dumps({"step": step, "time_s": 10.5 * step, "reward/mean": step / 8 if reward is None else reward,
                           "drift/mean_abs_delta": None, "staleness/histogram": [3, 1], "time/capture": 2, **more})

    def steps(self, *numbers, **more):
        self.append("metrics.jsonl", "".join(self.line(step, **more) + "\n" for step in numbers))

    def event(self, kind, step=0, **more):
        self.append("events.jsonl", json.dumps({"time_s": 1.5, "step": step, "kind": kind, "message": f"of {kind}", **more}) + "\n")

    def cut_after(self, step):
        """What a resume does: whole new files, in place of the others."""
        for name in ("metrics.jsonl", "events.jsonl"):
            lines = (self.path / name).read_text(encoding="utf-8").splitlines(keepends=True)
            (self.path / "partial").write_text("".join(one for one in lines if json.loads(one)["step"] <= step))
            os.replace(self.path / "partial", self.path / name)
        self.event("resumed", step)

    def finish(self, kind="run_finished", **more):
        self.event(kind, **more)
        self.write("report.html", "<p>report</p>")

    def metrics(self):
        return metrics_of(self.path)


def metrics_of(run):
    """step -> numbers, of the file as it is now."""
    text = (pathlib.Path(run) / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return {line["step"]: {name: value for name, value in line.items() if isinstance(value, (int, float))} for line in lines}


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), **more}


def start(*arguments, env=None, stderr_to=None, **more):
    """The command in a process of its own. What it says goes to a pipe, or behind what is in the file `stderr_to`."""
    command = [sys.executable, "-m", "tandem_rl.trackers", *map(str, arguments)]
    if stderr_to is None:
        return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env=env or environment(), **more)
    with open(stderr_to, "a", encoding="utf-8") as file:
        return subprocess.Popen(command, text=True, stderr=file, env=env or environment(), **more)


def call(*arguments, env=None, timeout=120, **more):
    """(exit code, what it said)"""
    with start(*arguments, env=env, **more) as process:
        try:
            _, said = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return process.returncode, said
