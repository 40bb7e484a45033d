"""Rubrics of the package verifiers (0.1) as rewards: an object with score_group(states), which scores each completion by
its functions (prompt, completion, answer, state, parser ..) and weights. Used by functions.py and
environments/verifiers_rollouts.py. verifiers itself is not
imported: the object brings it."""
import contextvars
import logging
import time
from collections.abc import Awaitable
from typing import Any


def is_rubric(value: Any) -> bool:
    return callable(getattr(value, "score_group", None)) and hasattr(value, "funcs") and hasattr(value, "weights")


class RubricError(Exception):
    """A function of a rubric raised. verifiers counts that as 0 and logs it; a reward that failed is not 0."""


_told: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("told", default=None)


class _Errors(logging.Handler):
    """Keeps what the rubrics of the present task log, others beside it have their own list."""

    def emit(self, record: logging.LogRecord) -> None:
        told = _told.get()
        if told is not None and record.name.startswith("verifiers.rubrics"):
            told.append(record.getMessage())


async def scored(scoring: Awaitable[None]) -> None:
    """Waits for a scoring of a rubric, and raises RubricError if one of its functions raised."""
    logger = logging.getLogger("verifiers")  # rubrics, those of users too, log below it
    if not any(isinstance(handler, _Errors) for handler in logger.handlers):
        logger.addHandler(_Errors(logging.ERROR))
    told: list[str] = []
    token = _told.set(told)
    try:
        await scoring
    finally:
        _told.reset(token)
    if told:
        raise RubricError(told[0])


def _state(prompt: Any, completion: Any, row: dict[str, Any]) -> dict[str, Any]:
    """What an environment of verifiers keeps of a rollout, as far as a rubric sees it."""
    shared = {"prompt": prompt, "answer": row.get("answer", ""), "task": row.get("task", "default"),
              "info": row.get("info") or {}, "example_id": row.get("example_id", 0)}
    return {**row, **shared, "input": {**row, **shared}, "completion": completion, "trajectory": [], "reward": None,
            "metrics": None, "advantage": None, "is_completed": True, "is_truncated": False, "stop_condition": None,
            "error": None, "timing": {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0, "start_time": time.time()}}


class RubricFunction:
    """Called as other rewards are. The reward is the rubric's weighted sum; its functions are the parts."""

    def __init__(self, rubric: Any) -> None:
        self.rubric = rubric

    async def __call__(self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]],
                       trainer_state: Any = None, log_extra: Any = None, log_metric: Any = None,
                       **columns: Any) -> list[dict[str, Any]]:
        states = [_state(prompts[i], completions[i], {name: values[i] for name, values in columns.items()})
                  for i in range(len(prompts))]
        await scored(self.rubric.score_group(states))
        return [{"reward": state["reward"], "parts": dict(state["metrics"] or {})} for state in states]
