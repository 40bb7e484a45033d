"""Tool calls in turns of models, in the forms that their chat templates teach. The parts of templates are copied from the
templates named."""
import os
import pathlib

import pytest
import trl
from transformers.utils.chat_template_utils import render_jinja_template

from tandem_rl.environments.tool_calls import Call, checked, read_calls, style_of, unread_form

# Parts of chat templates, as they stand on the hub.
QWEN_2_5 = ('{{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within '
            '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}'
            '\\n</tool_call><|im_end|>\\n" }}')
LLAMA_3_1 = ('{{- "You have access to the following functions. To call a function, please respond with JSON for a function call." }}'
             '{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\' }}'
             '{{- "Do not use variables.\\n\\n" }} {{- "<|python_tag|>" + tool_call.name + ".call(" }}')
MISTRAL_V3 = '{{- "[TOOL_CALLS] [" }}{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function|tojson %}'
GLM_4 = "\\n在调用上述函数时，请使用 Json 格式表示调用的参数。{% elif m.role == 'tool' %}<|observation|>\\n{{ m.content }}"
GLM_4_5 = ("For each function call, output the function name and arguments within the following XML format:\n<tool_call>"
           "{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n...\n</tool_call>")
QWEN_3_CODER = ("<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\nvalue_1\\n</parameter>\\n"
                "<parameter=example_parameter_2>\\nThis is the value for the second parameter\\nthat can span\\nmultiple lines\\n"
                "</parameter>\\n</function>\\n</tool_call>")


@pytest.mark.parametrize("template, style", [
    (QWEN_2_5, "hermes"), (LLAMA_3_1, "llama"), (MISTRAL_V3, "mistral"), (GLM_4, "glm4"), (GLM_4_5, "glm_xml"),
    (QWEN_3_CODER, "qwen_xml"), ("{% for message in messages %}{{ message['content'] }}{% endfor %}", "hermes"), ("", "hermes")])
def test_the_template_shows_the_form(template, style):
    assert style_of(template) == style


PARIS = Call("get_weather", {"city": "Paris"})
ROME = Call("get_weather", {"city": "Rome"})


@pytest.mark.parametrize("style, text, calls", [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', [PARIS]),
    ("hermes", 'Both:\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>\n<tool_call>\n'
               '{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}\n</tool_call><|im_end|>', [PARIS, ROME]),
    ("hermes", '<think>I could <tool_call>{"name": "f"}</tool_call></think>\nNo.', []),
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}', [PARIS]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', [Call("now", {})]),
    ("hermes", "It is sunny.", []),
    ("llama", '{"name": "get_weather", "parameters": {"city": "Paris"}}<|eot_id|>', [PARIS]),
    ("llama", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_weather", "parameters": '
              '{"city": "Rome"}}<|eom_id|>', [PARIS, ROME]),
    ("llama", '<|python_tag|>brave_search.call(query="weather in Paris, today")<|eom_id|>',
     [Call("brave_search", {"query": "weather in Paris, today"})]),
    ("llama", '{"answer": 3}', []),
    ("llama", "It is {warm}.", []),
    ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "VvvODy9mT"}]</s>', [PARIS]),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_weather", "arguments": '
                '{"city": "Rome"}}]', [PARIS, ROME]),
    ("mistral", '[{"name": "get_weather", "arguments": {"city": "Paris"}}]', [PARIS]),  # where special tokens were left out
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Paris"}[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}</s>',
     [PARIS, ROME]),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', [PARIS]),
    ("mistral", 'get_weather{"city": "Paris"}', [PARIS]),
    ("mistral", "[1] says it is sunny.", []),
    ("glm4", '\nget_weather\n{"city": "Paris"}', [PARIS]),
    ("glm4", 'get_weather\n{"city": "Paris"}<|assistant|>get_weather\n{"city": "Rome"}<|observation|>', [PARIS, ROME]),
    ("glm4", '\nget_weather\n{"city": "Paris"}\nget_weather\n{"city": "Rome"}', [PARIS, ROME]),
    ("glm4", "The weather\nis {nice}.", []),
    ("glm_xml", "<think></think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
     [PARIS]),
    ("glm_xml", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call><tool_call>now</tool_call>",
     [PARIS, Call("now", {})]),
    ("qwen_xml", "Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
     [PARIS]),
    ("qwen_xml", "<tool_call>\n<function=write>\n<parameter=text>\na\nb\n</parameter>\n<parameter=lines>\n2\n</parameter>\n"
                 "</function>\n</tool_call>", [Call("write", {"text": "a\nb", "lines": "2"})]),
])
def test_calls_are_read(style, text, calls):
    assert read_calls(text, style) == calls


@pytest.mark.parametrize("style, text, said", [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>', "the call is not valid JSON"),
    ("hermes", "<tool_call>f(1)</tool_call>", "the call is not valid JSON"),
    ("hermes", '<tool_call>["f"]</tool_call>', "the call has no name"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "the arguments of f are [1]: want an object"),
    ("llama", '{"name": "f", "parameters": {', "the call is not valid JSON"),
    ("llama", "<|python_tag|>print(1)", 'want {"name"'),
    ("llama", "<|python_tag|>f.call(x=y)", "the arguments cannot be read"),
    ("mistral", '[TOOL_CALLS] [{"name": "f"', "the call is not valid JSON"),
    ("mistral", "[TOOL_CALLS]f[ARGS]x", "the call is not valid JSON"),
    ("glm4", 'f\n{"x": ', "the call is not valid JSON"),
    ("glm_xml", "<tool_call>f\n<arg_key>x</arg_key>\n</tool_call>", "want a name, then <arg_key>"),
    ("qwen_xml", "<tool_call>f(1)</tool_call>", "want <function=name>"),
    ("qwen_xml", "<tool_call><function=f><parameter=x>1</function></tool_call>", "want <parameter=name>"),
])
def test_a_malformed_call_says_what_is_wrong(style, text, said):
    calls = read_calls(text, style)
    assert len(calls) == 1 and said in calls[0].error, calls


# Templates of models that come with TRL.
TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather.", "parameters": {
    "type": "object", "required": ["city"], "properties": {"city": {"type": "string", "description": "where"},
                                                           "days": {"type": "integer", "description": "how long"}}}}}


def written_by(template, call):
    """A turn with a call as the template of a model writes it."""
    messages = [{"role": "user", "content": "Is it warm?"},
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "000000000", "function": call}]}]
    before, whole = (render_jinja_template([messages[:count]], tools=[WEATHER], chat_template=template, bos_token="<s>",
                                           eos_token="</s>", add_generation_prompt=count == 1)[0][0] for count in (1, 2))
    return whole[len(os.path.commonprefix([before, whole])):]


@pytest.mark.parametrize("name, style", [
    ("qwen2_5", "hermes"), ("qwen3", "hermes"), ("qwen3_instruct_2507", "hermes"), ("qwen3_vl", "hermes"), ("llama3_1", "llama"),
    ("llama3_2", "llama"), ("glm4moe", "glm_xml"), ("qwen3_5_think", "qwen_xml"), ("qwen3_5_nothink", "qwen_xml"),
    ("nemotron_3_nano", "qwen_xml")])
def test_what_the_template_of_a_model_writes_is_read_again(name, style):
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    assert style_of(template) == style and not unread_form(template)
    arguments = {"city": "São \"Paulo\"", "days": 2}
    said = written_by(template, {"name": "get_weather", "arguments": arguments})
    read = [checked(call, {"get_weather": WEATHER}, style) for call in read_calls(said, style)]
    assert read == [Call("get_weather", arguments)], said


@pytest.mark.parametrize("name, mark", [
    ("gemma4", "<|tool_call>call:"), ("lfm2_2_5", "<|tool_call_start|>"), ("gptoss", "<|channel|>commentary"),
    ("deepseekv3", "<｜tool▁call"), ("gemma3", ""), ("phi3", "")])
def test_a_template_that_teaches_another_form_is_told(name, mark):
    assert unread_form((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")) == mark


def schema(properties, required):
    return {"f": {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties,
                                                                              "required": required}}}}


SCHEMAS = schema({"n": {"type": "integer"}, "words": {"type": "array", "items": {"type": "string"}},
                  "unit": {"type": "string", "enum": ["C", "F"]}, "note": {"type": "string", "nullable": True},
                  "size": {"type": ["integer", "string"]}, "flag": {"type": "boolean"}, "any": {}}, ["n"])


@pytest.mark.parametrize("arguments, error", [
    ({"n": 3}, ""), ({"n": 3.0}, ""), ({"n": 3, "words": ["a"], "unit": "C", "note": None, "size": "x", "flag": True, "any": [1]}, ""),
    ({}, "f needs the argument n"), ({"n": 1, "m": 2}, "f has no argument m; its arguments are n, words, unit, note, size, flag, any"),
    ({"n": "3"}, 'the argument n of f is "3": want integer'), ({"n": True}, "the argument n of f is true: want integer"),
    ({"n": 1.5}, "the argument n of f is 1.5: want integer"),
    ({"n": 1, "words": [1]}, "the argument words of f is [1]: want array of string"),
    ({"n": 1, "unit": "K"}, 'the argument unit of f is "K": want one of "C", "F"'),
    ({"n": 1, "size": 1.5}, "the argument size of f is 1.5: want integer or string"),
    ({"n": 1, "flag": 1}, "the argument flag of f is 1: want boolean")])
def test_arguments_are_checked_by_the_schema(arguments, error):
    assert checked(Call("f", arguments), SCHEMAS, "hermes").error == error


def test_arguments_that_are_written_as_text_become_what_the_schema_says():
    said = Call("f", {"n": "3", "words": '["a"]', "unit": "C", "note": "7", "flag": "true"})
    assert checked(said, SCHEMAS, "qwen_xml").arguments == {"n": 3, "words": ["a"], "unit": "C", "note": "7", "flag": True}
    assert checked(Call("f", {"n": "three"}), SCHEMAS, "glm_xml").error == 'the argument n of f is "three": want integer'


def test_a_tool_that_is_not_there_is_named():
    assert checked(Call("g", {}), SCHEMAS, "hermes").error == "there is no tool g; the tools are f"
