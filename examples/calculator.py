"""A tool for the model: trainer.environment.tools: [examples/calculator.py:calculator]."""
import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.USub: operator.neg,
             ast.UAdd: operator.pos}
LONGEST, LARGEST, LARGEST_EXPONENT = 200, 1e30, 100


def calculator(expression: str) -> str:
    """
    Computes an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, for instance "2 * (3 + 4)"

    Returns:
        The value
    """
    if len(expression) > LONGEST:
        raise ValueError(f"an expression has at most {LONGEST} characters")
    return str(value_of(ast.parse(expression.strip(), mode="eval").body))


def value_of(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](value_of(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = value_of(node.left), value_of(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > LARGEST_EXPONENT:
            raise ValueError(f"an exponent is at most {LARGEST_EXPONENT}")
        value = OPERATORS[type(node.op)](left, right)
    else:
        raise ValueError(f"cannot compute {ast.unparse(node)}: there are only numbers, + - * / // % ** and parentheses")
    if isinstance(value, complex) or abs(value) > LARGEST:
        raise ValueError(f"a value is real and at most {LARGEST:g}")
    return value
