"""Loads what reward.python.functions of a run file names, and checks that it can be called. Used by worker.py, before
anything is asked."""
import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from .rubric import RubricFunction, is_rubric

# What each function may have beside the columns of the data.
ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "answer")
# Other names of the answer, for functions that name one where the data has no such column.
ANSWERS = ("solution", "ground_truth")


class LoadError(Exception):
    """A function cannot be used; the message says why, and what to do."""


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


def place_of(error: BaseException, file: str | None = None) -> str:
    """"my_reward.py:12", the innermost line of `file` that raised, or else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    of_file = [frame for frame in frames if file is not None and os.path.realpath(frame.filename) == file]
    chosen = of_file or [frame for frame in frames if not frame.filename.startswith("<frozen")]
    return f"{_short(chosen[-1].filename)}:{chosen[-1].lineno}" if chosen else "no line"


def last_line(error: BaseException) -> str:
    """"ValueError: why", in one line."""
    lines = traceback.format_exception_only(type(error), error)
    return " ".join(lines[-1].split())


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _load_file(path: str) -> ModuleType:
    file = pathlib.Path(path)
    if not file.is_file():
        raise LoadError(f"{path}: no such file (seen from {os.getcwd()})")
    real = os.path.realpath(path)
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if origin == real:
            return module
    # A file may be called as a module that is loaded already, for instance math.py.
    name = file.stem if file.stem not in sys.modules and file.stem.isidentifier() else f"reward_file_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, real)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = os.path.dirname(real)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for a program, so that it imports its neighbours
    spec.loader.exec_module(module)
    return module


def _load_module(place: str) -> ModuleType:
    try:
        return _load_file(place) if place.endswith(".py") else importlib.import_module(place)
    except LoadError:
        raise
    except BaseException as error:
        raise LoadError(f"{place} cannot be imported: {last_line(error)} ({place_of(error)})") from error


def _attribute(module: ModuleType, place: str, dotted: str) -> Any:
    value: Any = module
    for name in dotted.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            others = [other for other in dir(value) if not other.startswith("_")]
            near = difflib.get_close_matches(name, others, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(others[:20]) or 'nothing'}"
            raise LoadError(f"{place} has no {name}{hint}") from None
    return value


def _arguments_of(call: str, spec: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of "name(1, size=3)"; only literals."""
    try:
        tree = ast.parse(call, mode="eval").body
        if not isinstance(tree, ast.Call):
            raise ValueError("no call")
        kwargs = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
        return [ast.literal_eval(value) for value in tree.args], kwargs
    except (SyntaxError, ValueError) as error:
        raise LoadError(f"{spec}: want a call with literals, such as name(size=3, kind='x'): {error}") from None


def _find(spec: str) -> Any:
    head = spec.split("(", 1)[0]
    place, dotted = head.rsplit(":", 1)
    value = _attribute(_load_module(place), place, dotted)
    if head == spec:
        return value
    args, kwargs = _arguments_of(spec[len(place) + 1:], spec)
    if not callable(value):
        raise LoadError(f"{spec}: {dotted} is {_kind(value)} and cannot be called")
    try:
        return value(*args, **kwargs)
    except BaseException as error:
        raise LoadError(f"{spec} raised {last_line(error)} ({place_of(error)})") from error


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _is_async(call: Callable[..., Any]) -> bool:
    while isinstance(call, functools.partial):
        call = call.func
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))


def load(name: str, spec: str) -> Function:
    """Finds the function, or raises LoadError."""
    value = _find(spec)
    if is_rubric(value):
        value = RubricFunction(value)
    if inspect.isclass(value):
        raise LoadError(f"{spec} is a class: name an object of it, as {spec}(), or a function")
    if not callable(value):
        raise LoadError(f"{spec} is {_kind(value)}, want a function that takes prompts, completions and the data's columns "
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
    return Function(name=name, spec=spec, call=value, is_async=_is_async(value),
                    takes_all=any(p.kind is p.VAR_KEYWORD for p in parameters),
                    names=frozenset(p.name for p in named),
                    required=frozenset(p.name for p in named if p.default is p.empty))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


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
            function.kwargs[argument] = _value(text)


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
