"""A hook of mkdocs: pages are written for GitHub's Markdown, and this makes the site show them as GitHub does.

* A link from a page to a file outside docs/ leads into the repository whose address is `repo_url` in mkdocs.yml;
  without one it becomes the file's path.
* In a table GitHub wants `|` escaped inside code too, and shows `a\\|b` as a|b. Python-Markdown shows the backslash.
"""
import os
import posixpath
import re

LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^ *```.*?^ *```[ \t]*$)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")


def outside(link, page, repository):
    """The link of a match, if it leads out of docs/; else the match as it stands."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2]))
    if path.startswith("docs/"):
        return link[0]
    if repository:
        return f"[{link[1]}]({repository.rstrip('/')}/blob/main/{path}{link[3] or ''})"
    return link[1] if path in link[1] else f"{link[1]} (`{path}`)"


def cells(line):
    return CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line


def as_on_github(markdown, page, repository):
    parts = FENCE.split(markdown)
    for i in range(0, len(parts), 2):  # the odd ones are blocks of code
        prose = LINK.sub(lambda link: outside(link, page, repository), parts[i])
        parts[i] = "\n".join(map(cells, prose.split("\n")))
    return "".join(parts)


def on_page_markdown(markdown, page, config, **_):
    return as_on_github(markdown, page.file.src_uri.replace(os.sep, "/"), config["repo_url"])
