"""LineFollower: the complete lines of a file that another process appends to, and sometimes rewrites (a resumed run cuts
metrics.jsonl and events.jsonl back to its checkpoint).

A line counts once its line break is there, so half a line is never seen. Whether the file was rewritten is told by its
contents: the last line that was taken must still stand where it stood. Every line of a run carries the seconds since its
start, so another line at that place has other bytes. Inode numbers would not tell, because file systems use them again."""
from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class News:
    lines: tuple[bytes, ...]  # without their line breaks
    rewritten: bool  # the lines are those from the beginning of the file, and take the place of all before
    at_end: bool  # no further complete line was there


class LineFollower:
    """Follows one file, which may not be there yet. Use from one thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._end = 0  # bytes that were taken
        self._last = b""  # the last line that was taken, with its line break

    def poll(self, limit: int = 1000) -> News:
        """At most `limit` lines that were not taken before. A file that is gone has no news: when it comes back, its
        lines are new ones."""
        try:
            file = open(self._path, "rb")
        except FileNotFoundError:
            return News((), rewritten=False, at_end=True)
        with file:
            file.seek(self._end - len(self._last))
            rewritten = file.read(len(self._last)) != self._last
            if rewritten:
                file.seek(0)
                self._end, self._last = 0, b""
            lines: list[bytes] = []
            while len(lines) < limit:
                line = file.readline()
                if not line.endswith(b"\n"):
                    return News(tuple(lines), rewritten, at_end=True)
                lines.append(line[:-1])
                self._end, self._last = self._end + len(line), line
        return News(tuple(lines), rewritten, at_end=False)
