"""TextEnvironment: the base of environments that users write, and the types of what its methods return. A class without a base does
as well (docs/environments.md); with one, editors and type checkers know what is wanted."""
from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

Message: TypeAlias = "dict[str, Any]"  # {"role": .., "content": ..}
Observation: TypeAlias = "str | Message | list[Message] | None"  # text is a message of the role user; None: there is none


class TextEnvironment(ABC):
    """Plays one episode; each has an object of its own, made with environment.kwargs of the run file."""

    def reset(self, *args: Any, **kwargs: Any) -> Observation:
        """Starts the episode. Called with keyword arguments only: `seed`, `row` (of the data) and the columns of the row; name those
        that you want. Returns the first observation, which the prompt has to show, or None."""
        return None

    @abstractmethod
    def step(self, text: str) -> tuple[Observation, float | None, bool]:
        """A turn of the model: (what it sees next, reward or None, whether the episode is done). The same seed, row and turns must
        give the same answers."""

    def close(self) -> None:
        """Ends the episode."""
