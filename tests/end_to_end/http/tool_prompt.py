"""A chat in which sums were added with a tool, which makes the model of tool_caller.py call it once more. Needs no package."""


def called(a, b):
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'


def shown(a, b):
    """A sum that was added before."""
    return [{"role": "user", "content": f"add {a} {b}"}, {"role": "assistant", "content": called(a, b)},
            {"role": "tool", "tool_call_id": "shown", "content": str(a + b)}, {"role": "assistant", "content": f"It is {a + b}."}]


MESSAGES = [*shown(2, 2), *shown(3, 4), {"role": "user", "content": "add 2 2"}]
