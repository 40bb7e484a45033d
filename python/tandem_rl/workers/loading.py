"""Finds what a run file names as FILE.py:NAME or MODULE:NAME, and says where something of it raised. Used by
rewards/functions.py and by environments/."""
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
from types import ModuleType
from typing import Any


class LoadError(Exception):
    """What a run file names cannot be used; the message says why, and what to do."""


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
    name = file.stem if file.stem not in sys.modules and file.stem.isidentifier() else f"file_of_user_{len(sys.modules)}"
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


def arguments_of(call: str, spec: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of "name(1, size=3)"; only literals."""
    try:
        tree = ast.parse(call, mode="eval").body
        if not isinstance(tree, ast.Call):
            raise ValueError("no call")
        kwargs = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
        return [ast.literal_eval(value) for value in tree.args], kwargs
    except (SyntaxError, ValueError) as error:
        raise LoadError(f"{spec}: want a call with literals, such as name(size=3, kind='x'): {error}") from None


def find_callee(spec: str) -> tuple[Any, list[Any], dict[str, Any]] | tuple[Any, None, None]:
    """What stands before the parentheses of "FILE.py:NAME(1, size=3)", and the arguments in them; None where there are none."""
    head = spec.split("(", 1)[0]
    place, colon, dotted = head.rpartition(":")
    if not colon or not place or not dotted:
        raise LoadError(f"{spec}: want FILE.py:NAME or MODULE:NAME")
    value = _attribute(_load_module(place), place, dotted)
    if head == spec:
        return value, None, None
    args, kwargs = arguments_of(spec[len(place) + 1:], spec)
    if not callable(value):
        raise LoadError(f"{spec}: {dotted} is {kind_of(value)} and cannot be called")
    return value, args, kwargs


def find(spec: str) -> Any:
    """What "FILE.py:NAME", "MODULE:NAME" or such a name with a call of literals, "NAME(size=3)", means; or raises LoadError."""
    value, args, kwargs = find_callee(spec)
    if args is None or kwargs is None:
        return value
    try:
        return value(*args, **kwargs)
    except BaseException as error:
        raise LoadError(f"{spec} raised {last_line(error)} ({place_of(error)})") from error


def kind_of(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def is_async(call: Callable[..., Any]) -> bool:
    while isinstance(call, functools.partial):
        call = call.func
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))


def value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
