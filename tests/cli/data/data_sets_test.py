"""`tandem data`, and the flags and options of data in `eval`, `sample`, `sft` and `run`, on the programs."""
import json
import os
import pathlib
import pty
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from forked_tandem import forked_tandem

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
TANDEM = BIN / "tandem"
TEMPLATE = SOURCE / "tests/testdata/smollm2-tokenizer"
ROWS = [{"problem": f"What is {i} + 1?", "info": {"gold": str(i + 1)}, "unit": "apples"} for i in range(40)]
COLUMNS = ["--columns", "prompt=problem,answer=info.gold"]


def tandem(*arguments, cwd=None, **environment):
    return forked_tandem(*arguments, cwd=cwd, env={**os.environ, **environment})


def succeeds(*arguments, **more):
    done = tandem(*arguments, **more)
    assert done.returncode == 0, done.stderr
    return done


def preview(*arguments):
    return json.loads(succeeds("data", *arguments, "--json").stdout)["data"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with a chat template, and rows as Parquet."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text("what is 1 + 2? 3. what is 4 + 5? 9.\n" * 40)
    succeeds("init", "--out", folder / "model", "--text", folder / "text.txt", "--hidden", 32, "--layers", 1, "--heads", 2, "--kv-heads", 1,
             "--intermediate", 48, "--vocab", 280, "--context", 512)
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
    return folder


def test_the_rendered_prompt_is_that_of_transformers(folder):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": 2}}}]
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    model = folder / "with_tools"
    subprocess.run(["cp", "-r", folder / "model", model], check=True)
    (model / "chat_template.jinja").write_text(template)
    (folder / "tools.json").write_text(json.dumps(tools))
    data, = preview(folder / "rows.parquet", "--model", model, *COLUMNS, "--system-prompt", "Count.", "--tools-file", folder / "tools.json", "--suffix", " ?!")
    tokenizer = AutoTokenizer.from_pretrained(model)
    for row, shown in zip(ROWS, data["first"]):
        messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": row["problem"] + " ?!"}]
        assert shown["text"] == tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert shown["token_ids"] == tokenizer(shown["text"], add_special_tokens=False)["input_ids"]
        assert shown["answer"] == row["info"]["gold"]
    assert data["rows"] == data["with_tools"] == 40 and data["duplicates"] == data["wrong"] == 0


def test_the_summary_names_form_columns_and_lengths(folder):
    done = succeeds("data", folder / "rows.parquet", "--model", folder / "model", *COLUMNS, "--rows", 1)
    for said in ("rows.parquet: Parquet, 40 rows", "columns: problem, info, unit", "format own columns: problem / info.gold", "length: tokens of a prompt",
                 "rows.parquet: row 1: ", "special tokens: <|im_end|> x1, <|im_start|> x2", "answer: 1\n"):
        assert said in done.stdout, done.stdout
    assert "\x1b" not in done.stdout


def test_tokens_have_colours_on_a_terminal_unless_no_color_is_set(folder):
    def on_terminal(**environment):
        outer, inner = pty.openpty()
        env = {**os.environ, "TERM": "xterm", **environment}
        if "NO_COLOR" not in environment:
            env.pop("NO_COLOR", None)
        process = subprocess.Popen([TANDEM, "data", folder / "rows.parquet", "--model", folder / "model", *COLUMNS, "--rows", "1"], stdout=inner, env=env)
        os.close(inner)
        text = b""
        try:
            while part := os.read(outer, 65536):
                text += part
        except OSError:  # the other side is closed
            pass
        assert process.wait(60) == 0
        os.close(outer)
        return text
    assert b"\x1b[48;5;24m" in on_terminal() and b"\x1b[" not in on_terminal(NO_COLOR="1")


def test_wrong_rows_are_counted_and_end_with_exit_code_3(folder):
    (folder / "wrong.csv").write_text("question,answer\none,1\n,2\n,3\n")
    done = tandem("data", folder / "wrong.csv")
    assert done.returncode == 3
    assert "2 rows cannot be used, the first: " in done.stdout and "wrong.csv: row 2: " in done.stdout
    done = tandem("data", folder / "wrong.csv", "--columns", "prompt=qestion")
    assert 'no column "qestion"; the columns are question, answer; did you mean "question"? (data.columns.prompt)' in done.stdout


def test_a_file_without_a_row_and_text_that_is_not_utf8_are_told(folder):
    (folder / "none.jsonl").write_text("")
    done = tandem("data", folder / "none.jsonl")
    assert done.returncode == 3 and "none.jsonl: no row of data" in done.stderr
    (folder / "latin1.jsonl").write_bytes('{"prompt": "café", "answer": "1"}\n'.encode("latin-1"))
    done = tandem("data", folder / "latin1.jsonl")
    assert done.returncode == 3 and "convert it to UTF-8" in done.stdout + done.stderr


RUN = """
trainer:
  model: {folder}/model
  run: {{name: r, out: {folder}/runs}}
  steps: 2
  prompts_per_step: 4
  completions_per_prompt: 2
  sampling: {{max_new_tokens: 4}}
  reward: {{weights: {{number_answer: 1}}}}
  data:
    mixture: {{"{folder}/rows.parquet": 3, "{folder}/set:train": 1}}
    columns: {{prompt: problem, answer: info.gold}}
    template: "{{problem}} In {{unit}}."
    eval_share: 0.2
  eval: {{every: 1}}
"""


@pytest.fixture(scope="module")
def run_file(folder):
    (folder / "set").mkdir()
    for split in ("train", "test"):
        (folder / f"set/{split}.jsonl").write_text("".join(json.dumps({**row, "problem": f"{split} {row['problem']}"}) + "\n" for row in ROWS[:10]))
    (folder / "run.yaml").write_text(RUN.format(folder=folder))
    return folder / "run.yaml"


def test_a_run_file_shows_what_it_trains_on(folder, run_file):
    first, second = preview(run_file)
    assert first["first"][0]["text"].count("What is 0 + 1? In apples.") == 1
    assert second["first"][0]["text"].count("train What is 0 + 1? In apples.") == 1 and second["description"] == "JSON lines, split train"
    assert 0 < first["held_out"] < 20
    done = tandem("data", run_file, "--suffix", "x")
    assert done.returncode == 2 and "use --set trainer.data.OPTION=VALUE" in done.stderr
    dry = succeeds("run", run_file, "--dry-run")
    assert "# columns: problem, info, unit" in dry.stdout and "# prompts: " in dry.stdout


def test_a_run_trains_on_a_mixture_with_a_held_out_share(folder, run_file):
    succeeds("run", run_file)
    lines = [json.loads(line) for path in sorted((folder / "runs/r/rollouts").glob("*.jsonl")) for line in path.read_text().splitlines()]
    prompts = {line["group_id"]: line["prompt"] for line in lines}
    texts = [json.dumps(prompts[group]) for group in sorted(prompts)][:8]
    assert ["train What" in text for text in texts] == [False, False, True, False] * 2  # credits 3, 2 and 1 before 4
    metrics = [json.loads(line) for line in (folder / "runs/r/metrics.jsonl").read_text().splitlines()]
    assert any("eval/greedy" in line for line in metrics)


def test_eval_sample_and_sft_take_the_same_flags(folder):
    rows = [*COLUMNS, "--template", "{problem} In {unit}."]
    done = succeeds("eval", "--model", folder / "model", "--data", folder / "rows.parquet", *rows, "--limit", 3, "--max-new-tokens", 2)
    assert json.loads(done.stdout)["num_prompts"] == 3
    done = tandem("sample", "--model", folder / "model", "--data", folder / "rows.parquet", *rows, "--limit", 2, "--max-new-tokens", 1, "--out", folder / "kept.jsonl")
    assert done.returncode == 3 and "0 rows from 2 prompts" in done.stderr  # every completion is cut
    succeeds("sft", "--model", folder / "model", "--data", folder / "rows.parquet", *rows, "--out", folder / "tuned", "--max-updates", 1)


def test_sft_and_preferences_read_directories_of_the_library(folder):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}] * 8)}
                         ).save_to_disk(folder / "chats")
    done = succeeds("sft", "--model", folder / "model", "--data", folder / "chats", "--out", folder / "chatty", "--max-updates", 1)
    assert "1 updates on 8 examples" in done.stdout
    datasets.Dataset.from_list([{"prompt": f"{i}?", "chosen": "yes", "rejected": "no"} for i in range(8)]).save_to_disk(folder / "pairs")
    succeeds("train-preferences", "--loss", "dpo", "--model", folder / "model", "--data", folder / "pairs", "--out", folder / "preferring", "--max-updates", 1)
