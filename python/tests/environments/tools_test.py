"""Functions as tools: their schemas are those of transformers, and the worker answers the calls of a model."""
import enum
import json
import os
from typing import Any, Literal, Optional, Union

import pytest
from transformers.utils import get_json_schema

from tandem_rl.environments.tool_schemas import SchemaError, schema_of

EXAMPLE = os.path.join(os.environ["TANDEM_SOURCE"], "examples", "calculator.py")


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


def weather(city: str, unit: Literal["C", "F"] = "C", days: int = 1) -> str:
    """Tells the weather.

    It knows large cities only.

    Args:
        city: The name of the city, which
            may take two lines
        unit: The unit (choices: ["C", "F"])
        days: How many days:
              one to seven

    Returns:
        The weather in words.

    Raises:
        ValueError: for a city that it does not know
    """


def nested(points: list[tuple[int, float]], names: dict[str, list[str]], either: Union[int, str], one: Optional[bool] = None,
           rest: Any = None, unit: Unit = Unit.CELSIUS, many: list | None = None, mixed: int | list[int] = 0) -> dict:
    """
    Does much.

    Args:
        points: Where
        names: Who
        either: A number or a text
        one: Perhaps
        rest: Whatever
        unit: In what
        many: A list
        mixed: One or several
    """


async def nothing():
    """Does nothing."""


def custom(x: int) -> Unit:
    """Returns what has a schema.

    Args:
        x: a number
    Returns:
        the unit
    """


class Methods:
    def method(self, text: str, number: float) -> None:
        """A method.

        Args:
            text: the text
            number: the number
        """


@pytest.mark.parametrize("function", [weather, nested, nothing, custom, Methods.method, Methods().method])
def test_schemas_are_those_of_transformers(function):
    assert schema_of(function) == get_json_schema(function)


@pytest.mark.parametrize("text, said", [
    ("def f(x: int): pass\n", "it has no docstring"), ("def f(x):\n  '''F.\n\n  Args:\n    x: a'''\n", "its argument x has no hint"),
    ("def f(x: int):\n  '''F.'''\n", "does not describe the argument x"),
    ("def f(x: set):\n  '''F.\n\n  Args:\n    x: a'''\n", "the type <class 'set'> has no JSON schema"),
    ("def f(*xs: int):\n  '''F.\n\n  Args:\n    xs: a'''\n", "its argument *xs: int takes any number of values"),
    ("def f(**xs: int):\n  '''F.\n\n  Args:\n    xs: a'''\n", "its argument **xs: int takes any number of values"),
    ("def f(x: int, /):\n  '''F.\n\n  Args:\n    x: a'''\n", "its argument x is given by position only"),
    ("f = 3\n", "is an int, want a function"), ("def g(): pass\n", "has no f"),
])
def test_what_cannot_be_a_tool_is_named(start, text, said):
    worker = start(text, {"kind": "tools", "specs": ["my_env.py:f"]})
    assert said in worker.hello["error"], worker.hello


def test_what_cannot_be_described_raises():
    with pytest.raises(SchemaError, match="no docstring"):
        schema_of(lambda: 0)


def call(name, /, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def counts(calls, errors=0, malformed=0):
    return {"tool_calls": calls, "tool_errors": errors, "malformed_calls": malformed}


def test_the_model_calculates(start):
    worker = start("", {"kind": "tools", "specs": [f"{EXAMPLE}:calculator"]})
    assert worker.hello["tools"][0]["function"]["name"] == "calculator"
    assert worker.open(prompt="What is 2 * (3 + 4)?") == {"episode": 1, "turn": 0, "messages": []}

    def compute(expression):
        return call("calculator", expression=expression)
    said = [compute("2 * (3 + 4)"), compute("1 / 0") + compute("-7 // 2"), compute("9 ** 9 ** 9"), compute("__import__('os')"),
            call("calculator", text="1"), "It is 14."]
    replies = [worker.step(text, turn) for turn, text in enumerate(said, 1)]
    assert [[message["content"] for message in reply["messages"]] for reply in replies] == [
        ["14"], ["Error: ZeroDivisionError: division by zero", "-4"], ["Error: ValueError: an exponent is at most 100"],
        ["Error: ValueError: cannot compute __import__('os'): there are only numbers, + - * / // % ** and parentheses"],
        ["Error: calculator has no argument text; its arguments are expression"], []]
    assert all(message["role"] == "tool" and message["name"] == "calculator" for reply in replies for message in reply["messages"])
    assert [message["tool_call_id"] for reply in replies for message in reply["messages"]] == [f"00000000{n}" for n in range(6)]
    assert [reply["done"] for reply in replies] == [False] * 5 + [True]
    assert [reply["info"] for reply in replies] == [counts(1), counts(3, errors=1), counts(4, errors=2), counts(5, errors=3),
                                                    counts(6, errors=3, malformed=1), counts(6, errors=3, malformed=1)]
    assert all(reply["reward"] is None for reply in replies)


TOOLS = '''
import asyncio
begun = 0
async def meet(name: str):
    """Waits for another.

    Args:
        name: who
    """
    global begun
    begun += 1
    while begun < 2: await asyncio.sleep(0)
    return {"met": name, "é": [1, None]}
def make(factor):
    def times(x: int):
        """Multiplies.

        Args:
            x: a number
        """
        return x * factor
    return times
'''


def test_calls_of_one_turn_run_beside_each_other_and_results_are_json(start):
    worker = start(TOOLS, {"kind": "tools", "specs": ["my_env.py:meet", "my_env.py:make(factor=3)"]})
    worker.open()
    reply = worker.step(call("meet", name="a") + call("times", x=4) + call("meet", name="b"))
    assert [message["content"] for message in reply["messages"]] == ['{"met": "a", "é": [1, null]}', "12",
                                                                     '{"met": "b", "é": [1, null]}']


ODD = '''
import enum
class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"
def paint(function: str, colour: Colour, other: Colour | None = None, third: Colour | int = 0):
    """Paints.

    Args:
        function: what
        colour: with what
        other: and with what
        third: a colour or its number, as it is written
    """
    return f"{function} {colour.name} {other and other.name} {third!r}"
'''


def test_an_argument_may_have_any_name_and_that_of_an_enum_is_a_member(start):
    worker = start(ODD, {"kind": "tools", "specs": ["my_env.py:paint"]})
    worker.open()
    said = [call("paint", function="sin", colour="red"), call("paint", function="sin", colour="blue", other="red", third=3),
            call("paint", function="sin", colour="green")]
    told = [worker.step(text, turn)["messages"][0]["content"] for turn, text in enumerate(said, 1)]
    assert told[:2] == ["sin RED None 0", "sin BLUE RED 3"]
    assert told[2].startswith("Error: ") and "green" in told[2]


def test_the_form_is_that_of_the_chat_template(start):
    worker = start(TOOLS, {"kind": "tools", "specs": ["my_env.py:make(factor=3)"]}, chat_template="[TOOL_CALLS] [")
    worker.open()
    assert worker.step('[TOOL_CALLS] [{"name": "times", "arguments": {"x": 2}}]')["messages"][0]["content"] == "6"
    assert worker.step(call("times", x=2), 2)["done"]


def test_a_template_whose_form_is_not_read_is_refused(start):
    worker = start(TOOLS, {"kind": "tools", "specs": ["my_env.py:meet"]}, chat_template="{{ '<|tool_call_start|>[' }}")
    assert "the chat template teaches tool calls with <|tool_call_start|>, a form that Tandem does not read" in worker.hello["error"]


def test_tools_are_not_called_again_where_an_episode_moves(start):
    worker = start("def f():\n  '''F.'''\n  raise ValueError\n", {"kind": "tools", "specs": ["my_env.py:f"]})
    history = [{"text": call("f"), "messages": [{"role": "tool", "name": "f", "tool_call_id": "000000000", "content": "as it was"}]}]
    assert worker.open(history=history) == {"episode": 1, "turn": 0, "messages": []}
    assert worker.step("done", 2)["done"]


def test_tools_have_names_of_their_own_and_no_kwargs(start):
    one = {"kind": "tools", "specs": ["my_env.py:make(factor=3)", "my_env.py:make(factor=4)"]}
    assert "there are two tools called times" in start(TOOLS, one).hello["error"]
    assert "environment.kwargs: tools take none (size)" in start(TOOLS, {"kind": "tools", "specs": ["my_env.py:meet"]},
                                                                 kwargs={"size": "1"}).hello["error"]
