"""`tandem label-steps`, `critique-revise`, `serve-reward-model` and `--best-of` on the programs: rows, resuming, counts and errors."""
import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading

import pytest

from forked_tandem import forked_tandem

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
SUMS = [{"prompt": f"what is {i} + 1?", "answer": str(i + 1)} for i in range(4)]
PAIRS = [{"prompt": f"what is {i} + 1?", "chosen": f"{i + 1}.", "rejected": f"{i}, I think"} for i in range(24)]
STEPS = [{"prompt": f"what is {i} + 1?", "steps": ["add 1", f"it is {i + i % 2}"], "labels": [1, i % 2]} for i in range(24)]


def tandem(*arguments, text=None):
    return forked_tandem(*arguments, text=text)


def succeeds(*arguments, **more):
    done = tandem(*arguments, **more)
    assert done.returncode == 0, done.stderr
    return done


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model that answers sums of the kind it was tuned on with a number and stops; reward models of it."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text("what is 1 + 2? 3. what is 4 + 5? 9.\n" * 40)
    succeeds("init", "--out", folder / "start", "--text", folder / "text.txt", "--hidden", 32, "--layers", 2, "--heads", 2, "--kv-heads", 1,
             "--intermediate", 48, "--vocab", 280, "--context", 256)
    sums = write(folder / "sums.jsonl", SUMS * 8)
    succeeds("sft", "--model", folder / "start", "--data", sums, "--out", folder / "lm", "--epochs", 40, "--batch", 8, "--lr", "3e-3")
    succeeds("train-reward-model", "--model", folder / "lm", "--data", write(folder / "pairs.jsonl", PAIRS), "--out", folder / "rm", "--heads", 2,
             "--epochs", 4, "--batch", 6, "--lr", "1e-3", "--held-out", "0.25")
    succeeds("train-reward-model", "--process", "--model", folder / "lm", "--data", write(folder / "steps.jsonl", STEPS), "--out", folder / "prm",
             "--batch", 6, "--held-out", "0.25")
    return folder


LINES = [{"prompt": "what is 1 + 1?", "completion": "1 + 1\nis\n2", "answer": "2"},
         {"prompt": [{"role": "user", "content": "what is 2 + 1?"}], "completion": "5", "answer": "3"},
         {"prompt": "what is 3 + 1?", "completion": "3 + 1\n4", "answer": "4"}]


def label(models, folder, *more, lines=None):
    data = write(folder / "lines.jsonl", LINES if lines is None else lines)
    return ["label-steps", "--model", models / "lm", "--data", data, "--out", folder / "labels.jsonl", "--continuations", 4,
            "--max-new-tokens", 8, "--threads", 1, *more]


def test_labels_of_steps_are_rows_that_a_process_reward_model_is_trained_on(models, tmp_path):
    counts = json.loads(succeeds(*label(models, tmp_path, "--labels", "soft")).stdout)
    rows = read(tmp_path / "labels.jsonl")
    assert [row["line"] for row in rows] == [1, 2, 3]
    assert rows[0]["steps"] == ["1 + 1\n", "is\n", "2"] and rows[0]["prompt"] == LINES[0]["prompt"]
    assert [row["labels"][-1] for row in rows] == [1, 0, 1], "the last step is judged by the completion's own answer"
    assert all(4 * mark == int(4 * mark) and 0 <= mark <= 1 for row in rows for mark in row["labels"])
    # Three prefixes are continued: two of the first line, none of the second, one of the third.
    assert counts["rows"] == 3 and counts["steps"] == 6 and counts["continuations"] == 12 and counts["unjudged"] == 0
    assert counts["prompt_tokens_computed"] == counts["prompt_tokens"] - counts["prompt_tokens_cached"]
    assert counts["prompt_tokens_cached"] > 0, "the second prefix begins with the first"
    succeeds("train-reward-model", "--process", "--model", models / "lm", "--data", tmp_path / "labels.jsonl", "--out", tmp_path / "prm",
             "--held-out", "0.34")


def test_without_the_prefix_cache_every_prompt_token_is_computed_and_the_labels_are_the_same(models, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    succeeds(*label(models, tmp_path / "a"))
    counts = json.loads(succeeds(*label(models, tmp_path / "b", "--no-prefix-cache")).stdout)
    assert counts["prompt_tokens_cached"] == 0 and counts["prompt_tokens_computed"] == counts["prompt_tokens"] > 0
    assert [row["labels"] for row in read(tmp_path / "a" / "labels.jsonl")] == [row["labels"] for row in read(tmp_path / "b" / "labels.jsonl")]


def test_labels_that_were_begun_go_on_with_the_same_rows_and_refuse_other_settings(models, tmp_path):
    (tmp_path / "whole").mkdir()
    succeeds(*label(models, tmp_path / "whole"))
    whole = (tmp_path / "whole" / "labels.jsonl").read_text()
    lines = write(tmp_path / "lines.jsonl", LINES)
    succeeds(*label(models, tmp_path))
    out = tmp_path / "labels.jsonl"
    assert out.read_text() == whole
    out.write_text(whole.splitlines()[0] + "\n" + whole.splitlines()[1][:20])
    counts = json.loads(succeeds(*label(models, tmp_path)).stdout)
    assert counts["resumed"] == 1 and counts["rows"] == 2 and out.read_text() == whole and lines.exists()
    other = tandem(*label(models, tmp_path, "--labels", "soft"))
    assert other.returncode == 3 and "was begun with `labels hard`, not `labels soft`" in other.stderr


@pytest.mark.parametrize("lines, flags, code, said", [
    ([LINES[0], {"prompt": "a", "completion": "b"}], [], 3, 'lines.jsonl:2: '),
    ([{"prompt": "a", "completion": " ", "answer": "1"}], [], 3, 'lines.jsonl:1: "completion" has no step'),
    ([{"prompt": "a", "completion": "b", "answer": "none"}], [], 3, "lines.jsonl:1: no completion was judged"),
    (LINES, ["--boundary", "regex"], 2, "pattern is empty"),
    (LINES, ["--reward", "golden"], 2, "no component 'golden'"),
    (LINES, ["--continuations", 0], 2, "--continuations"),
])
def test_a_mistake_in_labels_is_named(models, tmp_path, lines, flags, code, said):
    done = tandem(*label(models, tmp_path, *flags, lines=lines))
    assert done.returncode == code and said in done.stderr, done.stderr


def test_neither_server_nor_model_is_a_mistake_and_so_is_a_server_that_is_not_there(tmp_path):
    data = write(tmp_path / "lines.jsonl", LINES)
    done = tandem("label-steps", "--data", data, "--out", tmp_path / "out.jsonl")
    assert done.returncode == 2 and "want --model DIR" in done.stderr
    done = tandem("label-steps", "--server", "127.0.0.1:1", "--data", data, "--out", tmp_path / "out.jsonl")
    assert done.returncode != 0 and "127.0.0.1:1" in done.stderr


class Critic(http.server.BaseHTTPRequestHandler):
    """Finds fault with everything, revises to what the principle says, and writes nothing readable about the prompt of 3."""
    asked = []

    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        Critic.asked.append(content)
        reply = "It is too short." if content.startswith("Find fault") else "I see.\nRevision: " + ("" if "is 3" in content else content.split("|")[1])
        body = json.dumps({"choices": [{"message": {"content": reply}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def critic():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Critic)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def test_revisions_by_an_endpoint_are_data_for_sft_and_for_preferences(models, critic, tmp_path):
    constitution = tmp_path / "constitution.txt"
    constitution.write_text("Find fault with {response} to {prompt}\n---\nMend {prompt} {response} by {critique}|{principle}\n---\nspeak kindly\n")
    prompts = [{"prompt": "what is 1 + 1?"}, {"messages": [{"role": "user", "content": "what is 2 + 1?"}]}, {"prompt": "what is 3 + 1?"}]
    data = write(tmp_path / "prompts.jsonl", prompts)
    out, pairs = tmp_path / "revised.jsonl", tmp_path / "pairs.jsonl"
    command = ["critique-revise", "--model", models / "lm", "--data", data, "--constitution", constitution, "--out", out, "--pairs", pairs,
               "--critic-url", critic, "--critic-model", "c", "--temperature", "0", "--max-new-tokens", 12, "--threads", 1]
    counts = json.loads(succeeds(*command).stdout)
    rows = read(out)
    assert counts["rows"] == len(rows) and counts["rows"] + counts["cut"] + counts["unparsed"] == 3
    assert counts["unparsed"] == 1, "the revision of the third prompt is blank"
    assert [row["line"] for row in rows] == [1, 2] and all(row["answer"] == "speak kindly" for row in rows)
    assert rows[1]["messages"] == prompts[1]["messages"]
    assert rows[0]["critiques"] == [{"principle": "speak kindly", "critique": "It is too short."}]
    assert f"Find fault with {rows[0]['first_response']} to what is 1 + 1?" in Critic.asked
    made = read(pairs)
    assert made[0] == {"prompt": "what is 1 + 1?", "chosen": "speak kindly", "rejected": rows[0]["first_response"]}
    assert made[1]["chosen"] == [{"role": "assistant", "content": "speak kindly"}]
    again = json.loads(succeeds(*command).stdout)
    assert again["resumed"] == 2 and read(out) == rows
    succeeds("sft", "--model", models / "lm", "--data", out, "--out", tmp_path / "sft")
    succeeds("train-preferences", "--loss", "dpo", "--model", models / "lm", "--data", write(tmp_path / "texts.jsonl", made[:1] * 2), "--out", tmp_path / "dpo")


def test_the_rollout_server_criticises_itself_and_what_is_cut_gives_no_row(models, tmp_path):
    constitution = tmp_path / "constitution.txt"
    constitution.write_text("be kind\n")
    data = write(tmp_path / "prompts.jsonl", SUMS)
    command = ["critique-revise", "--model", models / "lm", "--data", data, "--constitution", constitution, "--threads", 1]
    cut = json.loads(succeeds(*command, "--out", tmp_path / "cut.jsonl", "--max-new-tokens", 1).stdout)
    assert cut["cut"] == 4 and cut["rows"] == 0
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    done = tandem(*command[:5], "--constitution", empty, "--out", tmp_path / "o.jsonl")
    assert done.returncode == 3 and "empty.txt has no principle" in done.stderr
    done = tandem(*command, "--out", tmp_path / "o.jsonl", "--critic-url", "http://127.0.0.1:1/v1")
    assert done.returncode == 2 and "--critic-url needs --critic-model" in done.stderr


def test_best_of_n_prints_the_completion_that_the_model_scores_highest(models, tmp_path):
    sample = ["generate", "--model", models / "lm", "--max-new-tokens", 6, "--temperature", 3, "--seed", 5]
    line = json.dumps({"prompt": "what is 1 + 1?"}) + "\n"
    group = json.loads(succeeds(*sample, "--group-size", 6, text=line).stdout)["completions"]
    best = json.loads(succeeds(*sample, "--best-of", 6, "--reward-model", models / "rm", text=line).stdout)
    assert best["best_of"] == 6 and best["completions"][0]["ids"] in [one["ids"] for one in group]
    for flags, said in ((["--best-of", 2], "go together"), (["--reward-model", models / "rm"], "go together"),
                        (["--best-of", 2, "--reward-model", models / "lm"], "it is no reward model")):
        done = tandem(*sample, *flags, text=line)
        assert done.returncode in (2, 3) and said in done.stderr


@pytest.mark.parametrize("kind", ["rm", "prm"])
def test_eval_reports_the_choice_of_the_model_between_one_sample_and_the_oracle(models, tmp_path, kind):
    data = write(tmp_path / "sums.jsonl", SUMS)
    done = json.loads(succeeds("eval", "--model", models / "lm", "--data", data, "--max-new-tokens", 6, "--best-of", 4, "--temperature", 2,
                               "--reward-model", models / kind).stdout)
    assert done["k"] == 4 and 0 <= done["pass_at_1"] <= done["pass_at_k"] and done["best_of_k"] <= done["pass_at_k"]
    assert 16 * done["pass_at_1"] == pytest.approx(round(16 * done["pass_at_1"])), "a share of 16 completions"


def test_two_directories_are_an_ensemble_of_all_their_heads(models, tmp_path):
    line = json.dumps({"prompt": "what is 1 + 1?", "completion": "2."}) + "\n"
    one = json.loads(succeeds("score-rewards", "--model", models / "rm", text=line).stdout)
    both = json.loads(succeeds("score-rewards", "--model", models / "rm", "--model", models / "rm", "--ensemble", "min", text=line).stdout)
    assert both["rewards"] == pytest.approx(one["rewards"] * 2) and both["reward"] == pytest.approx(min(one["rewards"]))
    mixed = tandem("score-rewards", "--model", models / "rm", "--model", models / "prm", text=line)
    assert mixed.returncode == 3 and "models of one kind" in mixed.stderr


def test_a_served_reward_model_says_where_it_listens_and_ends_with_a_signal(models):
    with subprocess.Popen([TANDEM, "serve-reward-model", "--model", models / "rm", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as served:
        address = json.loads(served.stdout.readline())["listening"]
        assert address.startswith("127.0.0.1:") and int(address.split(":")[1]) > 0
        taken = tandem("serve-reward-model", "--model", models / "rm", "--listen", address)
        assert taken.returncode != 0 and f"cannot listen on {address}" in taken.stderr
        served.send_signal(signal.SIGTERM)
        assert served.wait(timeout=30) == 143
    done = tandem("serve-reward-model", "--model", models / "lm")
    assert done.returncode == 3 and "it is no reward model" in done.stderr
    done = tandem("serve-reward-model", "--model", pathlib.Path("/no/such"))
    assert done.returncode == 3 and "/no/such" in done.stderr
