"""The blocks of docs/python_client.md run as they are, from top to bottom, on a small random model in the place of SmolLM2; its
tables name what there is."""
import contextlib
import dataclasses
import io
import pathlib
import re
import shutil
import subprocess

import page_blocks
import pytest
import small_run

from tandem_rl import client, launch

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = "docs/python_client.md"
ADDRESS = "127.0.0.1:50051"
TOKEN = "the-token-of-this-test-0123456789"


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    """What the page expects in the current directory: a model, data, certificates and a token."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/smollm2-135m-instruct").symlink_to(model)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "runs/data/multiply-1").mkdir(parents=True)
    for name in ("train", "held_out"):
        small_run.write_prompts(tmp_path / f"runs/data/multiply-1/{name}.jsonl")
    subprocess.run([launch.find_binary("tandem"), "certs", "--out", "certs"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "token").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


class Page:
    """Runs blocks in one namespace and keeps what they print."""

    def __init__(self):
        self.names = {}
        self.blocks = [block for block in page_blocks.blocks_of(ROOT, PAGE) if block.language == "python"]

    def run(self, wanted, address=""):
        """Runs the next blocks as long as `wanted` says so, with this address in place of the page's."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            while self.blocks and wanted(self.blocks[0].text):
                block = self.blocks.pop(0)
                exec(compile(block.text.replace(ADDRESS, address), block.place, "exec"), self.names)
        return said.getvalue()


def test_the_blocks_of_the_page_run_from_top_to_bottom(folder, capfd):
    page = Page()
    said = page.run(lambda text: "RolloutServer(" in text)
    assert sorted(re.findall(r"^(\d) (?:stop|length) ", said, re.MULTILINE)) == ["0", "1", "2", "3"]
    with launch.RolloutServer("models/smollm2-135m-instruct", numerics="exact") as server:
        said = page.run(lambda text: "tls=" not in text, server.address)
        page.names["client"].close()
    assert "llama bf16 exact 0 0" in said and "wrong: " in said and "is 1000000, want 0 to 353" in said
    assert said.count("\n0.0 [") == 2, "scores are the behaviour log-probs"
    assert re.search(r"^\d+ tokens$", said, re.MULTILINE)
    with launch.RolloutServer("models/smollm2-135m-instruct", tls="certs/rollout", token_file="token") as server:
        assert page.run(lambda text: "tls=" in text, server.address).startswith("0.1.0")
    assert str(launch.find_binary("tandem")) in page.run(lambda text: True)
    assert not page.blocks
    assert "from-python" in capfd.readouterr().out, "of the dry run"


def table(heading):
    """The names in code of the first column of the table that begins so."""
    text = (ROOT / PAGE).read_text(encoding="utf-8").split(heading)[1].split("\n\n")[0]
    return [name for line in text.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]


def test_the_table_of_completions_has_every_field_once():
    fields = [field.name for field in dataclasses.fields(client.Completion)] + ["weight_versions", "sampled"]
    assert sorted(table("| of `Completion` ")) == sorted(fields)


def test_the_table_of_errors_has_every_class():
    assert set(table("| class | when ")) == {"ServerBusy", "InvalidRequest", "NotReachable", "RolloutError"}
    assert all(issubclass(getattr(client, name), client.RolloutError) for name in table("| class | when "))


def test_the_page_names_every_option():
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    missing = [name for options in (client.GroupOptions, client.ScoreOptions) for name in options.__annotations__
               if not re.search(rf"\b{name}\b", text) and not name.endswith("_bits")]
    assert not missing, missing
