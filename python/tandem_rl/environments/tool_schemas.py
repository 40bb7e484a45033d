"""The JSON schema of a function, from its hints of types and its docstring in Google's style: what chat templates show a model
of a tool. The same as transformers.utils.get_json_schema gives (a test compares them), without the package, which the container
does not have and which would load torch. Used by tool_functions.py."""
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
_BASIC: dict[Any, Json] = {int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"},
                           bool: {"type": "boolean"}, type(None): {"type": "null"}, list: {"type": "array"}, tuple: {"type": "array"},
                           dict: {"type": "object"}, Any: {}}
_SCALARS = (int, float, str, bool, type(None))
_SECTION = re.compile(r"^\s*(Args|Returns|Raises):\s*(.*)$")
_ARGUMENT = re.compile(r"^([ \t]*)(\w+)(?: \([^)]*\))?:\s*(.*)$")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


class SchemaError(Exception):
    """A function says too little of itself to be a tool."""


def schema_of(function: Callable[..., Any]) -> Json:
    """{"type": "function", "function": {"name", "description", "parameters"}}, or raises SchemaError."""
    name = getattr(function, "__name__", "operation")
    docstring = inspect.getdoc(function)
    if not docstring:
        raise SchemaError("it has no docstring, which tells the model what it does: write one in Google's style, with Args:")
    description, described, returned = _sections(docstring.strip())
    properties, required, returns = _parameters(function)
    for argument, schema in properties.items():
        if argument not in described:
            raise SchemaError(f"its docstring does not describe the argument {argument}: write \"{argument}: what it is\" below "
                              "Args:")
        text = described[argument]
        choices = _CHOICES.search(text)
        if choices is not None:
            try:
                schema["enum"] = [c.strip() if isinstance(c, str) else c for c in json.loads(choices[1])]
            except ValueError:
                raise SchemaError(f"the choices of {argument} are no list of JSON: {choices[1]}") from None
            text = text[:choices.start()].strip()
        schema["description"] = text
    parameters: Json = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    tool: Json = {"name": name, "description": description, "parameters": parameters}
    if returns is not None:
        tool["return"] = {**returns, "description": returned} if returned is not None else returns
    return {"type": "function", "function": tool}


def enums_of(function: Callable[..., Any]) -> dict[str, type[enum.Enum]]:
    """The arguments whose type is an Enum, or an Enum or None: a model writes the values of its members."""
    found = {}
    for name, hint in typing.get_type_hints(function).items():
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        kinds = [part for part in parts if part is not type(None)]
        if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], enum.Enum):
            found[name] = kinds[0]
    return found


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, Json], list[str], Json | None]:
    """The schema of each argument, the names of those that have to be given, and the schema of what is returned."""
    try:
        hints = typing.get_type_hints(function)
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError, NameError) as error:
        raise SchemaError(f"its hints of types cannot be read: {error}") from None
    properties: dict[str, Json] = {}
    required = []
    for position, (name, parameter) in enumerate(parameters.items()):
        if position == 0 and name in ("self", "cls") and parameter.annotation is parameter.empty:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SchemaError(f"its argument {parameter} takes any number of values, which no schema says: name each argument, or "
                              "take one list")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SchemaError(f"its argument {name} is given by position only, and models call tools by name: take the / away")
        if parameter.annotation is parameter.empty:
            raise SchemaError(f"its argument {name} has no hint of its type: write {name}: str, for instance")
        properties[name] = _of_hint(hints[name])
        if parameter.default is parameter.empty:
            required.append(name)
    try:
        returns = _of_hint(hints["return"]) if "return" in hints else None
    except SchemaError:
        returns = None  # the model never writes it
    return properties, required, returns


def _of_values(values: list[Any], hint: Any) -> Json:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise SchemaError(f"{hint} has values that are no text, number or flag")
    kinds = list(dict.fromkeys(_BASIC[type(value)]["type"] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


def _of_union(args: tuple[Any, ...]) -> Json:
    parts = [_of_hint(arg) for arg in args if arg is not type(None)]
    if len(parts) == 1:
        schema = parts[0]
    elif all(set(part) == {"type"} and isinstance(part["type"], str) for part in parts):
        names = sorted({part["type"] for part in parts})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": parts}
    return {**schema, "nullable": True} if type(None) in args else schema


def _of_hint(hint: Any) -> Json:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is None and isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_values([member.value for member in hint], hint)
    if origin is None and hint in _BASIC:
        return dict(_BASIC[hint])
    if origin in (typing.Union, types.UnionType):
        return _of_union(args)
    if origin is typing.Literal:
        return _of_values(list(args), hint)
    if origin is list:
        return {"type": "array", "items": _of_hint(args[0])}
    if origin is tuple and len(args) > 1 and ... not in args:
        return {"type": "array", "prefixItems": [_of_hint(arg) for arg in args]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of_hint(args[1])}
    raise SchemaError(f"the type {hint} has no JSON schema: want int, float, str, bool, Any, an Enum, Literal, or list, dict, "
                      "tuple and unions of these")


def _sections(docstring: str) -> tuple[str, dict[str, str], str | None]:
    """The description, that of each argument, and that of what is returned."""
    lines: dict[str, list[str]] = {"": []}
    section = ""
    for line in docstring.split("\n"):
        opening = _SECTION.match(line)
        if opening is not None:
            section = opening[1]
            lines[section] = [opening[2]] if opening[2] else []
        else:
            lines[section].append(line)
    arguments: dict[str, str] = {}
    name, indentation = "", 0
    for line in lines.get("Args", []):
        if not line.strip():
            continue
        opening = _ARGUMENT.match(line)
        if opening is not None and (not name or len(opening[1]) <= indentation):
            name, indentation = opening[2], len(opening[1])
            arguments[name] = opening[3].strip()
        elif name:
            arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    returned = "\n".join(lines["Returns"]).strip() if "Returns" in lines else None
    return "\n".join(lines[""]).strip(), arguments, returned
