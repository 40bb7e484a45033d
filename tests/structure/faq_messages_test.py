"""The messages that docs/faq.md quotes are in the sources, so that a search for a message finds its entry."""
import re

from source_tree import ROOT

FOLDERS = ("cli", "common", "drift_lab", "rollout_server", "trainer")
HEADING = re.compile(r"^### `(.+)`$", re.MULTILINE)
FURTHEST = 200  # most characters of code, the printed expression, between two parts of a message


def literals(text):
    """The text of a source file in which neighbouring string literals are joined, as the compiler and StrCat join them."""
    return re.sub(r'"\s*,?\s*"', "", text).replace('\\"', '"')


def pattern(message):
    parts = [re.escape(part) for part in message.split("..")]
    return re.compile((r".{0,%d}?" % FURTHEST).join(part for part in parts if part), re.DOTALL)


def messages():
    return HEADING.findall((ROOT / "docs" / "faq.md").read_text(encoding="utf-8"))


def test_a_message_is_found_across_literals_and_what_is_printed_between_them():
    source = literals('StrCat("group ", id, " of "\n       "4 is \\"lost\\": ask ", "again")')
    assert pattern('group .. of 4 is "lost": ask again').search(source)
    assert not pattern("group .. of 5").search(source)


def test_every_quoted_message_stands_in_a_source_file():
    sources = [literals(path.read_text(encoding="utf-8")) for folder in FOLDERS
               for path in sorted((ROOT / folder).rglob("*.cc"))]
    assert len(messages()) >= 20
    missing = [message for message in messages() if not any(pattern(message).search(source) for source in sources)]
    assert not missing, "\n".join(missing)
