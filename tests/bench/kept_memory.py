"""What glibc keeps of freed activations in supervised training, as a share of them: the constants of cli/plan/memory_plan.cc.

    .deps/venv/bin/python tests/bench/kept_memory.py --tandem build/release/bin/tandem

Trains the models of plan_test.py on rows of several lengths in fp32, and prints for each row the peak less that of a tiny model, the plan,
and the share that makes them equal.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

COMMANDS = {"sft": ("sft", 1), "reward_model": ("train-reward-model", 2), "preferences": ("train-preferences", 2)}
PROMPT = 14  # tokens: the tokenizer of `tandem init` is trained on such prompts
MIB = 2**20


def run(words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def make_models(tandem, folder):
    text = folder / "text.txt"
    text.write_text("".join(f"what is {i} + {j}? {i + j}. the {i * j} of them\n" for i in range(60) for j in range(60)))
    for name, hidden, layers, intermediate in (("big", 512, 8, 1536), ("tiny", 32, 1, 64)):
        run([tandem, "init", "--out", folder / name, "--text", text, "--hidden", hidden, "--layers", layers, "--heads", 8, "--kv-heads", 4,
             "--intermediate", intermediate, "--vocab", 280, "--context", 512])
        (folder / name / "chat_template.jinja").unlink()


def write_data(path, algorithm, count, words):
    with path.open("w", encoding="utf-8") as file:
        for i in range(10, 10 + count):
            row = {"prompt": f"what is {i} + {i + 1}? "}
            if algorithm == "sft":
                row["answer"] = "the 7 of them " * words
            else:
                row |= {"chosen": "the 7 of them " * (words // 2), "rejected": "what is it? " * (words // 2)}
            file.write(json.dumps(row) + "\n")


def peak_bytes(words):
    """The peak resident bytes of a command."""
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, words
    return usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default="build/release/bin/tandem")
    tandem = os.path.abspath(parser.parse_args().tandem)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_models(tandem, folder)
        number = 0
        for algorithm, (command, answers) in COMMANDS.items():
            for count in (4, 8, 14):
                for words in (6, 12):
                    data = folder / "data.jsonl"
                    write_data(data, algorithm, count, words)
                    peaks = {}
                    for model in ("tiny", "big"):
                        number += 1
                        out = folder / f"out-{number}"
                        held_out = ["--held-out", 0.12] if algorithm == "reward_model" else []
                        peaks[model] = peak_bytes([tandem, command, "--model", folder / model, "--data", data, "--out", out, "--epochs", 6,
                                                   "--batch", count, "--microbatch-tokens", 8192, "--threads", 1, "--dtype", "fp32", *held_out])
                        tokens = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["num_tokens"]
                    examples = count - bool(held_out)
                    answer = max(1, (tokens // examples - PROMPT) // answers)
                    planned = json.loads(run([tandem, "plan", "--json", "--algorithm", algorithm, "--model", folder / "big", "--prompt-tokens", PROMPT,
                                              "--set", f"completion_tokens={answer}", "--set", f"batch={examples}", "--set", "dtype=fp32",
                                              "--set", "microbatch_tokens=8192"]))
                    rank = next(p for place in planned["places"] for p in place["processes"] if p["name"] == "trainer rank")
                    parts = {part["name"]: part["bytes"] for part in rank["parts"]}
                    measured = peaks["big"] - peaks["tiny"]
                    share = (measured - rank["bytes"] + parts["kept by the allocator"]) / parts["activations"]
                    print(f"{algorithm:12s} {tokens:5d} tokens, planned {rank['bytes'] / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB, "
                          f"{rank['bytes'] / measured - 1:+.1%}, kept {share:.2f}", flush=True)


if __name__ == "__main__":
    main()
