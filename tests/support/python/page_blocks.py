"""Fenced blocks of README.md and docs/. Their names say what a reader does with them:

    ```sh        can be pasted unchanged; tests/end_to_end/observe/pasted_commands_test.py runs them, each page from top to bottom
    ```console   needs more than a test has: a cluster, a container engine, a GPU, other programs, or hours
    ```text      a synopsis or the output of a program; the same without a name, where there must be no commands

In an `sh` block, a line that ends with "# refused" must fail. A `yaml` block whose first line is a comment with the name of a
file, "# run.yaml ...", is that file."""
import dataclasses
import pathlib
import re

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
PROGRAMS = ("tandem", "rollout_server", "trainer", "make", "build/release/bin/", ".deps/venv/bin/", "kubectl", "docker",
            "curl", "torchrun", "srun", "sbatch", "mpirun", "promtool", "prometheus", "openssl", "deploy/", ".ci/run")


@dataclasses.dataclass
class Block:
    page: str  # relative to the source tree
    line: int  # of its fence
    language: str
    text: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    def commands(self):
        """The lines without comments and empty lines. A line that ends with a backslash is joined to the next."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]

    def names_programs(self):
        return any(line.startswith(PROGRAMS) for line in self.commands())


def pages(source):
    source = pathlib.Path(source)
    return ["README.md", "CONTRIBUTING.md"] + sorted(str(path.relative_to(source))
                                                     for path in (source / "docs").rglob("*.md"))


def blocks_of(source, page):
    text = (pathlib.Path(source) / page).read_text(encoding="utf-8")
    return [Block(page, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2])
            for match in FENCE.finditer(text)]


def all_blocks(source):
    return [block for page in pages(source) for block in blocks_of(source, page)]
