"""Loads what reward.python.functions of a run file names, and checks that it can be called. Used by worker.py, before
anything is asked."""
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..workers.loading import LoadError, find, is_async, kind_of, value_of
from .rubric import RubricFunction, is_rubric

# What each function may have beside the columns of the data.
ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "answer")
# Other names of the answer, for functions that name one where the data has no such column.
ANSWERS = ("solution", "ground_truth")


@dataclass
class Function:
    """A function that can be asked: what to call, and which keyword arguments it takes."""
    name: str  # of its component
    spec: str
    call: Callable[..., Any]
    is_async: bool
    takes_all: bool  # **kwargs
    names: frozenset[str]  # arguments that it names
    required: frozenset[str]  # those without a default
    kwargs: dict[str, Any] = field(default_factory=dict)  # of the run file

    def takes(self, name: str) -> bool:
        return self.takes_all or name in self.names


def load(name: str, spec: str) -> Function:
    """Finds the function, or raises LoadError."""
    value = find(spec)
    if is_rubric(value):
        value = RubricFunction(value)
    if inspect.isclass(value):
        raise LoadError(f"{spec} is a class: name an object of it, as {spec}(), or a function")
    if not callable(value):
        raise LoadError(f"{spec} is {kind_of(value)}, want a function that takes prompts, completions and the data's columns "
                        "as keyword arguments and returns a list of rewards")
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        raise LoadError(f"{spec} has no signature that Python can tell: wrap it in a function of Python") from None
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if positional:
        raise LoadError(f"{spec}: {', '.join(positional)} can only be given by position, and rewards are called with keyword "
                        "arguments: remove the / from its signature")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Function(name=name, spec=spec, call=value, is_async=is_async(value),
                    takes_all=any(p.kind is p.VAR_KEYWORD for p in parameters),
                    names=frozenset(p.name for p in named),
                    required=frozenset(p.name for p in named if p.default is p.empty))


def give_kwargs(functions: list[Function], kwargs: dict[str, str]) -> None:
    """Gives each argument of reward.python.kwargs to the function before the dot, or to all that take it."""
    for key, text in kwargs.items():
        name, dot, argument = key.rpartition(".")
        if dot:
            takers = [f for f in functions if f.name == name]
            if not takers:
                raise LoadError(f"reward.python.kwargs: {key}: no function is called {name}; there are "
                                f"{', '.join(f.name for f in functions)}")
        else:
            takers = functions
        takers = [f for f in takers if f.takes(argument)]
        if not takers:
            raise LoadError(f"reward.python.kwargs: no function takes the argument {argument}")
        for function in takers:
            function.kwargs[argument] = value_of(text)


def check_arguments(function: Function, row: dict[str, Any] | None) -> None:
    """Whether the function gets all that it needs. `row`: a line of the data; None: unknown."""
    if row is None:
        return
    given = {*ALWAYS, *ANSWERS, *row, *function.kwargs} - {"prompt", "completion"}
    missing = sorted(function.required - given)
    if missing:
        raise LoadError(f"{function.spec} needs the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}, and gets "
                        f"{', '.join(ALWAYS)}, the columns of the data ({', '.join(row)}) and reward.python.kwargs: rename "
                        "the column, or give the argument a default")
