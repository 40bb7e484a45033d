"""Limits of size in lines (files 600, headers 200, functions 80, main.cc 100), and names of files."""
import collections
import re

from source_tree import SOURCE_FOLDERS, files, name, strip_comments_and_strings

FILE_LINES, HEADER_LINES, FUNCTION_LINES, MAIN_LINES = 600, 200, 80, 100
FOLDER_SOURCES = 20
BANNED_STEMS = {"util", "utils", "helper", "helpers", "common", "misc", "types", "tools"}
NOT_A_FUNCTION = re.compile(r"^\s*(namespace|extern|class|struct|union|enum)\b|=\s*$")


def line_count(path):
    return path.read_text().count("\n")


def functions(text):
    """Returns (first line, number of lines) of every function body. Lambdas belong to the function that contains them.

    A function is the outermost pair of braces inside namespaces and classes whose head has a parameter list.
    """
    found = []
    stack = []  # True where a scope holds declarations (namespace, class); False inside functions
    head_start, line = 0, 1
    function_start, function_depth = 0, 0
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                  strip_comments_and_strings(text), flags=re.MULTILINE)
    for i, char in enumerate(text):
        if char == "\n":
            line += 1
        elif char == "{":
            head = text[head_start:i]
            outside = all(stack)
            holds_declarations = outside and (
                bool(re.search(r"\b(namespace|class|struct|union|enum|extern)\b", head))
                and not re.search(r"\)\s*(const|noexcept|override|final|&|->.*|\s)*$", head, re.DOTALL))
            if outside and not holds_declarations:
                function_start, function_depth = line, len(stack)
            stack.append(holds_declarations)
            head_start = i + 1
        elif char == "}":
            if stack:
                stack.pop()
            if function_start and len(stack) == function_depth:
                found.append((function_start, line - function_start + 1))
                function_start = 0
            head_start = i + 1
        elif char == ";":
            head_start = i + 1
    return found


def test_the_counter_counts_functions_and_not_classes():
    text = ("namespace a {\nclass B {\n  int F() const {\n    if (x) {\n    }\n  }\n};\n"
            "int G(struct C c) {\n  return \"}\"[0];\n}\n}\n")
    assert functions(text) == [(3, 4), (8, 3)]


def test_files_and_headers_stay_within_their_budget():
    over = []
    for path in files([*SOURCE_FOLDERS, "tests", "python"], {".h", ".cc", ".py", ".rs", ".cu"}):
        limit = HEADER_LINES if path.suffix == ".h" else FILE_LINES
        limit = MAIN_LINES if path.name == "main.cc" else limit
        if line_count(path) > limit:
            over.append(f"{name(path)}: {line_count(path)} lines, at most {limit}")
    assert not over, "\n".join(over)


def test_folders_hold_at_most_twenty_sources():
    counts = collections.Counter(path.parent for path in files([*SOURCE_FOLDERS, "tests", "python", "proto", "deploy", "docs"],
                                                               {".h", ".cc", ".py", ".rs", ".cu", ".proto"}))
    over = [f"{name(folder)}: {count} sources, at most {FOLDER_SOURCES}"
            for folder, count in counts.items() if count > FOLDER_SOURCES]
    assert not over, "\n".join(over)


def test_functions_stay_within_their_budget():
    over = [f"{name(path)}:{first}: a function of {lines} lines, at most {FUNCTION_LINES}"
            for path in files([*SOURCE_FOLDERS, "tests"], {".h", ".cc", ".cu"})
            for first, lines in functions(path.read_text()) if lines > FUNCTION_LINES]
    assert not over, "\n".join(over)


def test_no_file_has_a_name_without_a_meaning():
    bad = [name(path) for path in files([*SOURCE_FOLDERS, "tests", "python"], {".h", ".cc", ".py", ".rs", ".cu"})
           if path.stem in BANNED_STEMS or path.stem.endswith(("_utils", "_helpers", "_util"))]
    assert not bad, bad


def test_policies_are_called_by_their_glossary_names():
    word = re.compile(r"\b(old|prev)_\w*|\b\w+_(old|prev)\b")
    bad = []
    for path in files(["trainer"], {".h", ".cc", ".cu"}):
        text = strip_comments_and_strings(path.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            if word.search(line):
                bad.append(f"{name(path)}:{number}: {line.strip()}")
    assert not bad, "use behaviour, proximal, target:\n" + "\n".join(bad)
