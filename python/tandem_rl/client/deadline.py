"""How long a call may take in all, and when a busy server is asked again within that time."""
from __future__ import annotations

import time
from collections.abc import Callable

from .errors import RolloutError, ServerBusy, invalid

DEFAULT_PAUSE_SECONDS = 1.0  # before a busy server is asked again that did not say when


class Deadline:
    """A time from now on. Raises InvalidRequest for a time that is not above 0."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not seconds > 0:
            raise invalid(f"deadline_seconds is {seconds}: want more than 0")
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._end - self._clock())

    def pause_after(self, error: RolloutError) -> float | None:
        """Seconds until the call is worth repeating; None where it is not, or only after the deadline."""
        if not isinstance(error, ServerBusy):
            return None
        pause = DEFAULT_PAUSE_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds
        return pause if pause < self.left() else None
