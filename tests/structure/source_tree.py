"""The project's own source files, for the tests in this folder."""
import os
import pathlib
import re

ROOT = pathlib.Path(os.environ.get("TANDEM_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
SOURCE_FOLDERS = ["common", "rollout_server", "trainer", "drift_lab", "cli"]
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def files(folders, suffixes):
    """Paths under the folders with one of the suffixes, without those of the Rust build."""
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            if path.suffix in suffixes and path.is_file() and "target" not in parts:
                found.append(path)
    return found


def name(path):
    return path.relative_to(ROOT).as_posix()


def includes(path):
    """The includes of a file, as they are written."""
    return [match.group(2) for match in INCLUDE.finditer(path.read_text())]


def strip_comments_and_strings(text):
    """C++ text whose comments and literals are replaced by spaces. Line breaks are kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])*\'',
        re.DOTALL)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
