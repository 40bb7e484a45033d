"""Reads the tool calls in a turn of a model, in the form that its chat template teaches. Pure functions, used by
tool_functions.py and verifiers_rollouts.py. The forms, by the names that style_of gives them:

    hermes    <tool_call>{"name": "f", "arguments": {..}}</tool_call>          Hermes, Qwen2.5, Qwen3, SmolLM3
    llama     {"name": "f", "parameters": {..}}, <|python_tag|>f.call(x=1)      Llama 3.1 to 3.3
    mistral   [TOOL_CALLS] [{"name": "f", "arguments": {..}}], [TOOL_CALLS]f[ARGS]{..}   Mistral
    glm4      f\\n{..}                                                           GLM-4
    glm_xml   <tool_call>f\\n<arg_key>x</arg_key>\\n<arg_value>1</arg_value>..    GLM-4.5 and later
    qwen_xml  <tool_call><function=f><parameter=x>1</parameter></function>..    Qwen3-Coder, Qwen3.5

What stands in <think>..</think> is no call."""
import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Json = dict[str, Any]
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_NAME_AND_JSON = re.compile(r"\s*(?:<\|assistant\|>)?\s*([\w.-]+)[ \t]*\n\s*(\{.*)\Z", re.DOTALL)
_BUILT_IN = re.compile(r"\s*([\w.-]+?)\.call\((.*)\)\s*\Z", re.DOTALL)
_END_OF_TURN = re.compile(r"(?:<\|eot_id\|>|<\|eom_id\|>|<\|im_end\|>|<\|observation\|>|<\|user\|>|</s>)\s*\Z")


@dataclass(frozen=True)
class Call:
    """A call of the model. `error`: what is wrong with it, for the model to read; then the rest may be empty."""
    name: str
    arguments: Json
    error: str = ""


def style_of(chat_template: str) -> str:
    """The form of calls that a chat template shows; Hermes' if it shows none."""
    for style, marks in (("qwen_xml", ("<function=", "<parameter=")), ("glm_xml", ("<arg_key>", "<arg_value>")),
                         ("mistral", ("[TOOL_CALLS]",)), ("hermes", ("<tool_call>",)),
                         ("llama", ('{"name": function name, "parameters"',)), ("llama", ("<|python_tag|>",)),
                         ("glm4", ("<|observation|>",))):
        if all(mark in chat_template for mark in marks):
            return style
    return "hermes"


# What templates have that teach another form.
_NOT_READ = ("<|tool_call>call:", "<|tool_call_start|>", "<|channel|>commentary", "<｜tool▁call", "functools[", "<minimax:tool_call>",
             "<|tool_calls_section_begin|>", "<function_calls>", ":function_calls>")


def unread_form(chat_template: str) -> str:
    """The mark of a form of calls that a template teaches and that is not read here; empty if there is none."""
    is_read = any(mark in chat_template for mark in ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"))
    return "" if is_read else next((mark for mark in _NOT_READ if mark in chat_template), "")


def read_calls(text: str, style: str) -> list[Call]:
    """The calls of a turn in order, those that are malformed with their error; [] if there is none."""
    said = _END_OF_TURN.sub("", text.rpartition("</think>")[2])
    return _READERS[style](said)


def before_calls(text: str, style: str) -> str:
    """What a turn that has calls says before them."""
    thought, end, said = text.rpartition("</think>")
    marks = {"llama": ["<|python_tag|>", "{"], "mistral": ["[TOOL_CALLS]", "["], "glm4": [""]}.get(style, ["<tool_call>", "<function="])
    at = min((said.find(mark) for mark in marks if mark in said), default=len(said))
    return thought + end + said[:at]


def _broken(error: ValueError | RecursionError, text: str, name: str = "") -> Call:
    return Call(name, {}, f"the call is not valid JSON ({error}): {text.strip()[:120]}")


def _call_of(value: Any) -> Call:
    """A call of {"name", "arguments"}; parameters is another word for arguments, and they may be JSON in a text."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", {}, "the call has no name: want {\"name\": .., \"arguments\": {..}}, got " + json.dumps(value)[:120])
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return _broken(error, arguments, value["name"])
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return Call(value["name"], {}, f"the arguments of {value['name']} are {json.dumps(arguments)[:120]}: want an object, "
                    "{\"name of the argument\": value}")
    return Call(value["name"], arguments)


def _hermes(text: str) -> list[Call]:
    calls = []
    for match in _CALL.finditer(text):
        try:
            calls.append(_call_of(json.loads(match[1])))
        except (ValueError, RecursionError) as error:
            calls.append(_broken(error, match[1]))
    return calls


def _objects(text: str) -> list[Call]:
    """Objects of JSON one after the other, with semicolons between them or not."""
    calls: list[Call] = []
    rest = text.strip()
    while rest.startswith("{"):
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError) as error:
            return [*calls, _broken(error, rest)]
        calls.append(_call_of(value))
        rest = rest[end:].lstrip(" \t\n;,")
    return calls


def _built_in(text: str) -> list[Call]:
    """brave_search.call(query="..") as Llama 3.1 calls its built-in tools."""
    match = _BUILT_IN.match(text)
    if match is None:
        return []
    try:
        call = ast.parse(f"f({match[2]})", mode="eval").body
        assert isinstance(call, ast.Call)
        return [Call(match[1], {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords})]
    except (SyntaxError, ValueError, RecursionError) as error:
        return [Call(match[1], {}, f"the arguments cannot be read ({error}): {match[2][:120]}")]


def _llama(text: str) -> list[Call]:
    _, tag, after = text.partition("<|python_tag|>")
    if tag:
        return _objects(after) or _built_in(after) or [Call("", {}, f"want {{\"name\": .., \"parameters\": {{..}}}}: {after[:120]}")]
    # An answer that is an object without a name is no call.
    return _objects(text) if text.lstrip().startswith("{") and '"name"' in text else []


def _mistral(text: str) -> list[Call]:
    _, mark, after = text.partition("[TOOL_CALLS]")
    after = after.strip() if mark else text.strip()
    if re.match(r"\[\s*\{", after):
        if not mark and '"name"' not in after:
            return []
        try:
            return [_call_of(value) for value in json.JSONDecoder().raw_decode(after)[0]]
        except (ValueError, RecursionError) as error:
            return [_broken(error, after)]
    if not mark and not re.match(r"[\w.-]+\{\"", after):  # special tokens may have been left out
        return []
    calls = []
    for part in after.split("[TOOL_CALLS]"):
        name, brace, arguments = part.partition("{")
        name = re.split(r"\[CALL_ID\]|\[ARGS\]", name)[0].strip()
        try:
            value = json.JSONDecoder().raw_decode(brace + arguments)[0]
            calls.append(_call_of({"name": name, "arguments": value}) if name else _call_of(value))
        except (ValueError, RecursionError) as error:
            calls.append(_broken(error, part, name))
    return calls


def _glm4(text: str) -> list[Call]:
    calls: list[Call] = []
    match = _NAME_AND_JSON.match(text)
    while match is not None:
        try:
            value, end = json.JSONDecoder().raw_decode(match[2])
        except (ValueError, RecursionError) as error:
            return [*calls, _broken(error, match[2], match[1])]
        calls.append(_call_of({"name": match[1], "arguments": value}))
        match = _NAME_AND_JSON.match(match[2][end:])
    return calls


def _glm_xml(text: str) -> list[Call]:
    calls = []
    for match in _CALL.finditer(text):
        name = match[1].split("<", 1)[0].strip()
        arguments = {key.strip(): value for key, value in _ARGUMENT.findall(match[1])}
        wrong = "" if name and match[1].count("<arg_key>") == len(_ARGUMENT.findall(match[1])) else \
            f"want a name, then <arg_key>..</arg_key> and <arg_value>..</arg_value> for each argument: {match[1].strip()[:120]}"
        calls.append(Call(name, arguments, wrong))
    return calls


def _qwen_xml(text: str) -> list[Call]:
    found = [(match[1].strip(), match[2]) for match in _FUNCTION.finditer(text)]
    calls = []
    for name, body in found:
        arguments = {key.strip(): value for key, value in _PARAMETER.findall(body)}
        wrong = "" if body.count("<parameter=") == len(_PARAMETER.findall(body)) else \
            f"want <parameter=name>value</parameter> for each argument: {body.strip()[:120]}"
        calls.append(Call(name, arguments, wrong))
    if not found:
        calls = [Call("", {}, f"want <function=name> in <tool_call>: {match[1].strip()[:120]}") for match in _CALL.finditer(text)]
    return calls


_READERS: dict[str, Callable[[str], list[Call]]] = {
    "hermes": _hermes, "llama": _llama, "mistral": _mistral, "glm4": _glm4, "glm_xml": _glm_xml, "qwen_xml": _qwen_xml}
TEXT_ARGUMENTS = {"glm_xml", "qwen_xml"}  # the styles that write each argument as text

_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
                                       "array": (list,), "object": (dict,), "null": (type(None),)}


def checked(call: Call, schemas: dict[str, Json], style: str) -> Call:
    """The call with what is wrong with it by the schemas of the tools, {name: schema}; arguments that the style writes as text
    become what the schema says."""
    if call.error:
        return call
    if call.name not in schemas:
        return replace(call, error=f"there is no tool {call.name}; the tools are {', '.join(schemas)}")
    parameters = schemas[call.name]["function"].get("parameters", {})
    properties = parameters.get("properties", {})
    for name in call.arguments:
        if name not in properties:
            return replace(call, error=f"{call.name} has no argument {name}; its arguments are {', '.join(properties) or 'none'}")
    for name in parameters.get("required", []):
        if name not in call.arguments:
            return replace(call, error=f"{call.name} needs the argument {name}")
    arguments = {}
    for name, value in call.arguments.items():
        if style in TEXT_ARGUMENTS and not _fits(value, properties[name]):
            value = _json_of(value)
        if isinstance(value, float) and value.is_integer() and not _fits(value, properties[name]):
            value = int(value)  # JSON has one kind of number
        if not _fits(value, properties[name]):
            return replace(call, error=f"the argument {name} of {call.name} is {json.dumps(value)[:80]}: want "
                           f"{_wanted(properties[name])}")
        arguments[name] = value
    return replace(call, arguments=arguments)


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _fits(value: Any, schema: Json) -> bool:
    """Whether a value is what the part of JSON schema says that hints of types become."""
    if value is None and schema.get("nullable"):
        return True
    if "anyOf" in schema:
        return any(_fits(value, one) for one in schema["anyOf"])
    if "enum" in schema and not any(value == one and type(value) is type(one) for one in schema["enum"]):
        return False
    types = schema.get("type", [])
    names = [types] if isinstance(types, str) else types
    allowed = tuple(kind for name in names for kind in _TYPES.get(name, (object,)))
    if names and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed and object not in allowed)):
        return False
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return all(_fits(item, schema["items"]) for item in value)
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        return all(_fits(item, schema["additionalProperties"]) for item in value.values())
    return True


def _wanted(schema: Json) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_wanted(one) for one in schema["anyOf"])
    types = schema.get("type", "a value")
    wanted = types if isinstance(types, str) else " or ".join(types)
    return f"{wanted} of {_wanted(schema['items'])}" if isinstance(schema.get("items"), dict) else str(wanted)
