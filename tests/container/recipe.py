"""Parses a Containerfile and an ignore file, as far as the tests need it."""
import dataclasses
import fnmatch
import re


@dataclasses.dataclass
class Stage:
    base: str
    name: str
    steps: list  # (instruction, rest) pairs in order

    def of(self, instruction):
        return [rest for name, rest in self.steps if name == instruction]


def instructions(text):
    """(INSTRUCTION, rest) of every step. Continued lines are joined, and comments between them are skipped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    for line in joined.splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name.upper(), rest.strip()


def read(text):
    """The defaults of the ARGs before the first FROM, and the stages in order."""
    arguments, stages = {}, []
    for name, rest in instructions(text):
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stages.append(Stage(base, alias, []))
        elif stages:
            stages[-1].steps.append((name, rest))
        else:
            key, _, value = rest.partition("=")
            arguments[key] = value
    return arguments, stages


def ignored(path, patterns):
    """True if `path` is not in the build context. The last pattern that matches it or a folder above it decides."""
    parts = path.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    out = False
    for pattern in patterns:
        keep = pattern.startswith("!")
        pattern = pattern.lstrip("!").rstrip("/")
        if pattern.startswith("**/"):
            fits = any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
        else:
            fits = any(fnmatch.fnmatchcase(folder, pattern) and folder.count("/") == pattern.count("/")
                       for folder in above)
        if fits:
            out = not keep
    return out
