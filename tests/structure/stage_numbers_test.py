"""Each of the nine stages of the data path is named in the opening comment of a file."""
import re

from source_tree import files


def opening_comment(path):
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.lstrip("/ "))
    return " ".join(lines)


def test_every_stage_has_its_file():
    named = set()
    for path in files(["trainer", "rollout_server"], {".h"}):
        for first, last in re.findall(r"[Ss]tages? (\d)(?:\s*(?:-|to|and)\s*(\d))?",
                                      opening_comment(path)):
            named |= set(range(int(first), int(last or first) + 1))
    assert named == set(range(1, 10)), f"without a file: {sorted(set(range(1, 10)) - named)}"
