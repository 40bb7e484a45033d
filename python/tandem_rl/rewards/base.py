"""Reward: the base of rewards that are classes, and the types of what rewards return. A function without a base does as well; with
one, editors and type checkers know what is wanted."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias, TypedDict


class _HasReward(TypedDict):
    reward: float | None


class Detailed(_HasReward, total=False):
    """A reward with what it consists of (docs/data_and_rewards.md): named parts, and rewards of steps or tokens of the completion."""
    parts: dict[str, float]
    steps: Sequence[Any]
    tokens: Sequence[float]


Score: TypeAlias = "float | None | Detailed"  # None: this reward does not apply to the completion


class Reward(ABC):
    """A reward with state, named in a run file by a call: `python: "my_reward.py:MyReward(size=3)"`."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Sequence[Score]:
        """The rewards of the completions of one group, in their order. Called with keyword arguments only: `completions` (texts, or
        messages where the prompts are), `prompts`, `completion_ids`, `answer`, and each column of the data as a list with one value
        for each completion. Name those that you want, and end with **kwargs."""
