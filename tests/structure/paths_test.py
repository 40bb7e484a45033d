"""The path of the checkout may contain spaces, so paths that go through a shell are quoted."""
import re

from source_tree import SOURCE_FOLDERS, ROOT, name

# A flag and its argument in one word of CMake, which CMake splits as a shell does: "SHELL:-idirafter \"${FOLDER}/include\"".
SHELL_WORD = re.compile(r'"SHELL:(?P<text>(?:[^"\\]|\\.)*)"')
QUOTED = re.compile(r'\\"[^"]*\\"')


def unquoted(text):
    return [match["text"] for match in SHELL_WORD.finditer(text) if "${" in QUOTED.sub("", match["text"])]


def test_an_unquoted_path_is_found():
    assert unquoted('"SHELL:-idirafter ${A}/include"') == ["-idirafter ${A}/include"]
    assert unquoted('"SHELL:-idirafter \\"${A}/include\\"" "SHELL:-U _FORTIFY_SOURCE"') == []


def test_paths_in_flags_that_cmake_splits_are_quoted():
    folders = [ROOT / folder for folder in (*SOURCE_FOLDERS, "cmake", "proto", "python", "tests")]
    paths = [ROOT / "CMakeLists.txt", *(path for folder in folders for pattern in ("*.cmake", "CMakeLists.txt")
                                        for path in folder.rglob(pattern))]
    found = {name(path): words for path in paths if (words := unquoted(path.read_text(encoding="utf-8")))}
    assert len(paths) > 20 and not found, found
