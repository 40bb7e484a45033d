"""Fenced blocks of README.md and docs/, by what a reader does with them.

    ```sh        pasted as it stands: tests/end_to_end/observe/pasted_commands_test.py runs every one, a page from top to bottom
    ```console   needs what a test has not: a cluster, a container engine, a GPU, other programs, or hours
    ```text      a synopsis, or what a program prints; a block without a name is the same, and holds no commands

In an `sh` block a line that ends with "# refused" is one that must fail. A `yaml` block whose first line is a comment
with a file's name, "# run.yaml ...", is that file."""
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
        """Its lines, those that end with a backslash joined to the next, comments and empty ones left out."""
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
