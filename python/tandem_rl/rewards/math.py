"""The component `math` of a reward: compares mathematical answers with the package math-verify. Answers of the data may be
numbers, LaTeX, solutions with a \\boxed{} (MATH) or with a #### (GSM8K). Runs in the main thread of a worker, because
math-verify bounds its time by a signal."""
import re
from typing import Any

PARSING_SECONDS = 5
VERIFYING_SECONDS = 5


class MissingPackage(ImportError):
    pass


try:
    import math_verify
    from latex2sympy2_extended import NormalizationConfig
except ImportError as error:
    raise MissingPackage("the component math needs the package math-verify: pip install math-verify, or pip install "
                         f"'tandem-rl[math]', for the interpreter that rewards run in ({error})") from None

_LATEX = math_verify.LatexExtractionConfig(boxed_match_priority=0, normalization_config=NormalizationConfig(units=True))
_PLAIN = math_verify.ExprExtractionConfig()
_GSM8K = re.compile(r"####\s*(.+?)\s*$", re.MULTILINE)


def _gold(answer: str) -> list[Any]:
    """What stands after the last ####; else what math-verify finds, a \\boxed{} first; else the whole as LaTeX."""
    final = _GSM8K.findall(answer)
    text = final[-1] if final else answer
    for form in (text, f"${text}$"):
        parsed: list[Any] = math_verify.parse(form, extraction_config=[_LATEX, _PLAIN], parsing_timeout=PARSING_SECONDS)
        if parsed:
            return parsed
    return []


def _is_right(gold: list[Any], completion: str) -> bool:
    final = _GSM8K.findall(completion)
    text = final[-1] if final else completion
    said = math_verify.parse(text, extraction_config=[_LATEX, _PLAIN], extraction_mode="first_match",
                             parsing_timeout=PARSING_SECONDS)
    return bool(math_verify.verify(gold, said, timeout_seconds=VERIFYING_SECONDS))


def math_reward(completions: list[Any], answer: list[Any], **_: Any) -> list[float | None]:
    """1 where the answer of the completion equals the answer of the data, else 0; None where the latter is no mathematics
    that can be read."""
    rewards: list[float | None] = []
    for completion, wanted in zip(completions, answer, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        gold = _gold(str(wanted))
        rewards.append(float(_is_right(gold, text)) if gold else None)
    return rewards
