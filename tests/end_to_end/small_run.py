"""Complete runs of server and trainer on a small random model with `tandem run`, for end-to-end tests."""
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
TANDEM = pathlib.Path(os.environ["TANDEM_BIN"]) / "tandem"


def has_native_bf16():
    return "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")


def without_native_bf16(monkeypatch):
    """An fp32 engine that rounds at the same sites gives the bits of a bf16 engine, except with the AVX512-BF16 instructions,
    which round sums of pairs differently. This function disables them for the processes of the test."""
    if has_native_bf16():
        monkeypatch.setenv("TANDEM_INSTRUCTION_SET", "avx512")


MAKE_MODELS = SOURCE / "tests" / "parity" / "make_models.py"


def made_models(*arguments):
    """The directory of models that make_models.py has made with these arguments, whichever test asked first. To import
    transformers takes ten processor seconds, and the same program and libraries give the same files."""
    about = [MAKE_MODELS.read_text(encoding="utf-8"), *arguments,
             *(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "tokenizers", "safetensors"))]
    key = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
    return pathlib.Path(os.environ["TANDEM_TESTS"]) / "made_models" / key


def make_model(directory, *arguments, kind="llama"):
    """A random model whose vocabulary is its tokenizer's, so that text rewards see every token."""
    words = ["--kind", kind, "--vocab-size", "354", *map(str, arguments)]

    def make(out):
        subprocess.run([sys.executable, str(MAKE_MODELS), *words, "--out", str(out)], check=True, timeout=120)

    if "TANDEM_TESTS" not in os.environ:
        make(directory)
        return directory
    kept = made_models(*words)
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            make(pathlib.Path(folder) / "model")
            try:  # under the name only once it is whole; a test that runs at the same time may have been faster
                os.rename(pathlib.Path(folder) / "model", kept)
            except OSError:
                assert kept.exists()
    shutil.copytree(kept, directory, dirs_exist_ok=True)
    return directory


def write_prompts(path, count=12):
    with open(path, "w", encoding="utf-8") as file:
        for i in range(count):
            file.write(json.dumps({"prompt": f"Name a number like {i}:", "answer": str(i % 10)}) + "\n")
    return path


def write_config(folder, model, **trainer):
    """A run file for three steps of 4 x 4 completions of 12 tokens; `trainer` adds to its section."""
    section = {
        "run": {"out": str(folder / "runs"), "name": "small"}, "model": str(model), "seed": 5,
        "steps": 3, "prompts_per_step": 4, "completions_per_prompt": 4,
        "sampling": {"temperature": 1, "max_new_tokens": 12},
        "data": {"train": str(write_prompts(folder / "train.jsonl")), "chat": False},
        # About half of the random completions have one of these letters, so rewards differ within groups.
        "reward": {"weights": {"format": 1}, "format": "(?s).*[eq].*"},
        "optimizer": {"learning_rate": 1e-3}, **trainer}
    config = {"launch": {"num_servers": 1},
              "server": {"model": str(model), "engine": {"dtype": "fp32", "kv_capacity_tokens": 4096}},
              "trainer": section}
    if "TANDEM_TEST_HISTORY" in os.environ:  # set by conftest.py, which checks the histories at the end of the test
        for role in ("server", "trainer"):
            config[role]["history"] = os.environ["TANDEM_TEST_HISTORY"]
    path = folder / "run.yaml"
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML
    return path


def run(config, *arguments, timeout=240):
    """`tandem run`; returns (exit code, stdout + stderr)."""
    done = subprocess.run([str(TANDEM), "run", str(config), *arguments], capture_output=True, text=True,
                          timeout=timeout)
    return done.returncode, done.stdout + done.stderr


def steps(folder):
    """The lines of metrics.jsonl of train steps. A last line without an end is being written and is skipped."""
    text = (folder / "runs" / "small" / "metrics.jsonl").read_text(encoding="utf-8")
    whole = text[:text.rfind("\n") + 1]
    return [line for line in map(json.loads, whole.splitlines()) if "loss/total" in line]


def events(folder, kind):
    text = (folder / "runs" / "small" / "events.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]


def check_ledger(folder):
    """`tandem ledger` finds the run whole: every group is somewhere, once."""
    done = subprocess.run([str(TANDEM), "ledger", str(folder / "runs" / "small")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def rollouts(folder, step):
    text = (folder / "runs" / "small" / "rollouts" / f"step_{step}.jsonl").read_text(encoding="utf-8")
    return sorted(map(json.loads, text.splitlines()), key=lambda group: group["group_id"])


def capture_of(folder, model, *arguments, engine=None, inject=None, steps=2, timeout=240, **trainer):
    """The capture of the last step of a run; `engine` adds to the server's section, `inject` to the faults."""
    path = write_config(folder, model, steps=steps, capture={"every": steps}, deterministic=True, **trainer)
    config = json.loads(path.read_text())
    config["server"]["engine"].update(engine or {})
    if inject:
        config["drift"] = {"inject": inject}
    path.write_text(json.dumps(config))
    return capture_of_config(path, *arguments, timeout=timeout)


def capture_of_config(path, *arguments, timeout=240):
    """Runs a file of write_config that captures its last step, and returns that capture."""
    code, output = run(path, *arguments, timeout=timeout)
    assert code == 0, output
    captures = path.parent / "runs" / "small" / "captures"
    return max(captures.glob("step_*"), key=lambda step: int(step.name.removeprefix("step_")))


def drift(command, capture, *arguments, timeout=300):
    """`tandem drift attribute` or `replay` on a capture: (exit code, stdout + stderr, its JSON or None)."""
    out = capture.parent / f"{command}.json"
    out.unlink(missing_ok=True)
    done = subprocess.run([str(TANDEM), "drift", command, str(capture), "--json-out", str(out), *arguments],
                          capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else None
