"""Runs every ```sh block of README.md and docs/ without changes, each page from top to bottom in one shell, in a folder that
looks like the source tree after the first command of the README. A small random model replaces SmolLM2, also under its name on
a stand-in for the Hugging Face Hub, and `runs/demo-multiply-1` exists. Ports and paths below /tmp are replaced. The random model never answers correctly, so the demo
and the reader's run files get a reward for letters (SOME_TEXTS); otherwise `drift replay` would have no groups to compare.
tests/support/python/page_blocks.py explains the names of blocks."""
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
import small_run

SOURCE = small_run.SOURCE

import free_ports
import page_blocks

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
PAGES = [page for page in page_blocks.pages(SOURCE)
         if any(block.language == "sh" for block in page_blocks.blocks_of(SOURCE, page))]
SECONDS = 300

# make would build first, and `make test` would run this test again.
MAKE = """#!/bin/bash
if [ "$1" = test ]; then exec {make} -n -o configure test; fi
exec {make} -o setup -o configure -o build "$@"
"""

# A random model neither multiplies nor writes sentences, so this reward differs within some of its groups.
SOME_TEXTS = 'format: "(?s).*[eq].*"'
SOME_REWARDS = "weights: {format: 1}\n    " + SOME_TEXTS

# A background command of a block has started when the ports that the block names answer.
WAIT_FOR = 'for port in {ports}; do until (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null; do sleep 0.2; done; done\n'


def test_there_are_pages_to_test():
    assert "README.md" in PAGES and len(PAGES) >= 8


def run_yaml_of(page):
    """The files that the yaml blocks of a page describe: name -> text."""
    files = {}
    for block in page_blocks.blocks_of(SOURCE, page):
        named = re.match(r"# (\S+\.yaml)", block.text)
        if block.language == "yaml" and named:
            files[named[1]] = block.text
    return files


def make_tree(folder, model):
    for entry in SOURCE.iterdir():
        if entry.name not in {"build", "models", "runs", "docs", "examples", ".git"}:
            (folder / entry.name).symlink_to(entry)
    shutil.copytree(SOURCE / "examples", folder / "examples")
    demo_file = folder / "examples" / "demo.yaml"
    demo_file.write_text(demo_file.read_text(encoding="utf-8").replace("weights: {number_answer: 1}", SOME_REWARDS), encoding="utf-8")
    shutil.copytree(SOURCE / "docs", folder / "docs")  # where figures are drawn again
    (folder / "models").mkdir()
    (folder / "models" / "smollm2-135m-instruct").symlink_to(model)
    (folder / "build" / "release").mkdir(parents=True)
    (folder / "build" / "release" / "bin").symlink_to(BIN)
    (folder / "bin").mkdir()
    make = folder / "bin" / "make"
    make.write_text(MAKE.format(make=shutil.which("make")))
    make.chmod(0o755)
    return folder


def bash(folder, script, seconds=SECONDS):
    """Runs a script there and ends the processes that it left. Returns (exit code, output)."""
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{BIN}:{os.environ['PATH']}", "NO_COLOR": "1"}
    log = folder / "output.txt"
    with open(log, "wb") as output:
        shell = subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment, stdout=output,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = shell.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = "no end"
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            shell.wait()
    return code, log.read_text(encoding="utf-8", errors="replace")


def as_run(line):
    command = line.split(" #")[0].strip()
    if line.rstrip().endswith("# refused"):
        return f"if {command}; then echo 'this was to be refused'; exit 90; fi"
    # A request to a process that is starting is repeated, as a reader would do.
    if re.match(r"curl |(\S*/)?tandem (status|logs) ", command) and not command.endswith(("\\", "&")):
        return f"until {command}; do sleep 0.5; done"
    return line


def script_of(page, scratch):
    ports = {}

    def port(match):
        return f"127.0.0.1:{ports.setdefault(match[1], free_ports.free_port())}"

    script = "set -euxo pipefail\n"
    for block in page_blocks.blocks_of(SOURCE, page):
        if block.language != "sh":
            continue
        text = re.sub(r"127\.0\.0\.1:(\d{2,5})", port, block.text.replace("/tmp/", f"{scratch}/"))
        lines = [as_run(line) for line in text.splitlines()]
        script += f": '{block.place}'\n" + "\n".join(lines) + "\n"
        if any(line.split(" #")[0].rstrip().endswith(" &") for line in lines):
            script += WAIT_FOR.format(ports=" ".join(sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)))))
    return script + "jobs -p | xargs -r kill 2>/dev/null || true\n"


def make_tree_for(page, folder, model):
    folder.mkdir()
    make_tree(folder, model)
    # A run file and prompts for pages that expect the reader's and do not show any.
    for name, text in {**run_yaml_of("docs/replay.md"), **run_yaml_of(page)}.items():
        text = re.sub(r'format: "[^"]*"', SOME_TEXTS, text)
        (folder / name).write_text(text, encoding="utf-8")
    small_run.write_prompts(folder / "train.jsonl", count=40)
    return folder


@pytest.fixture(scope="module")
def readme(model, tmp_path_factory):
    """What the commands of the README end with, (exit code, output), and runs/ after the first of them."""
    scratch = tmp_path_factory.mktemp("readme")
    folder = make_tree_for("README.md", scratch / "tree", model)
    script = re.sub(r"^make demo\b.*", r"\g<0>\ncp -a runs runs_of_demo", script_of("README.md", scratch), count=1, flags=re.M)
    return *bash(folder, script), folder / "runs_of_demo"


@pytest.fixture
def demo(readme):
    """The directory runs/ after the first command of the README."""
    _, output, runs = readme
    assert runs.exists(), output[-6000:]
    assert "de-quantised from a 4-bit file" in output, "the demo says what its model is"
    return runs


def test_what_the_readme_tells_to_paste_works(readme):
    code, output, _ = readme
    assert code == 0, output[-8000:]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_what_a_page_tells_to_paste_works(page, model, demo, tmp_path, fake_hub):
    fake_hub.add_directory("models", "HuggingFaceTB/SmolLM2-135M-Instruct", model)
    folder = make_tree_for(page, tmp_path / "tree", model)
    shutil.copytree(demo, folder / "runs", symlinks=True)
    code, output = bash(folder, script_of(page, tmp_path))
    assert code == 0, output[-8000:]
