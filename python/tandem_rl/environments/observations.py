"""Reads what environments return: observations as messages, rewards and metrics as numbers. Used by the kinds of environment."""
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

from .episode import EpisodeError, Json, Reply

OBSERVATION = "text, a message {\"role\": .., \"content\": ..} or a list of messages"
STEP = ("(observation, reward, done), Gymnasium's (observation, reward, terminated, truncated, info), or {\"observation\": .., "
        "\"reward\": .., \"done\": .., \"info\": ..}")
_KEYS = {"observation", "messages", "reward", "done", "info"}


def _shown(value: Any) -> str:
    return f"{value!r:.80}, {type(value).__name__}"


def _plain(value: Any) -> Any:
    """A number of numpy or torch as one of Python."""
    return value.item() if hasattr(value, "item") and not isinstance(value, (numbers.Number, str)) else value


def _text_of(content: Any) -> Any:
    """Parts of text, [{"type": "text", "text": ..}, ..], as one text; anything else as it is."""
    def is_text(part: Any) -> bool:
        return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
    if isinstance(content, (list, tuple)) and content and all(map(is_text, content)):
        return "".join(part["text"] for part in content)
    return content


def _message(value: Any, what: str) -> Json:
    if not isinstance(value, Mapping):
        raise EpisodeError(f"{what} is {_shown(value)}: want {OBSERVATION}")
    if "content" in value:
        value = {**value, "content": _text_of(value["content"])}
    for key in ("role", "content"):
        if not isinstance(value.get(key), str):
            raise EpisodeError(f"{what} is the message {value!r:.80}, whose {key} is {type(value.get(key)).__name__}: want text")
    try:
        read: Json = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise EpisodeError(f"{what} is the message {value!r:.80}, which is no JSON: {error}") from None
    return read


def messages_of(observation: Any, what: str) -> list[Json]:
    """The messages of an observation, [] of None and of empty text. `what` names it in errors: "the observation of step"."""
    if observation is None or (isinstance(observation, str) and not observation):
        return []
    if isinstance(observation, str):
        return [{"role": "user", "content": observation}]
    if isinstance(observation, (list, tuple)):
        return [_message(value, f"message {i} of {what}") for i, value in enumerate(observation)]
    return [_message(observation, what)]


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def reward_of(value: Any, what: str) -> float | None:
    value = _plain(value)
    if value is None:
        return None
    if not isinstance(value, numbers.Real) or not _is_finite(value):
        raise EpisodeError(f"{what} is {_shown(value)}: want a finite number, or None where there is no reward")
    return float(value)


def _flag_of(value: Any, what: str) -> bool:
    value = _plain(value)
    if not isinstance(value, bool):
        raise EpisodeError(f"{what} is {_shown(value)}: want True or False")
    return value


def metrics_of(info: Any) -> dict[str, float]:
    """The numbers and flags of what an environment tells beside its rewards."""
    read: dict[str, float] = {}
    for name, value in info.items() if isinstance(info, Mapping) else ():
        value = _plain(value)
        if isinstance(value, numbers.Real) and _is_finite(value):
            read[str(name)] = float(value)
    return read


def reply_of(returned: Any, name: str) -> Reply:
    """Reads what `name`, a step, returned."""
    if isinstance(returned, Mapping):
        unknown = sorted(set(map(str, returned)) - _KEYS)
        if unknown or "done" not in returned:
            raise EpisodeError(f"{name} returned a dict {'with the key ' + unknown[0] if unknown else 'without done'}: want {STEP}")
        observation, reward, done = returned.get("observation", returned.get("messages")), returned.get("reward"), returned["done"]
        info = returned.get("info")
    elif isinstance(returned, tuple) and len(returned) in (3, 5):
        observation, reward, done = returned[0], returned[1], returned[2]
        info = returned[4] if len(returned) == 5 else None
        if len(returned) == 5:
            done = _flag_of(returned[2], f"terminated of {name}") or _flag_of(returned[3], f"truncated of {name}")
    else:
        shown = f"{len(returned)} values" if isinstance(returned, tuple) else _shown(returned)
        raise EpisodeError(f"{name} returned {shown}: want {STEP}")
    reply = Reply(messages_of(observation, f"the observation of {name}"), reward_of(reward, f"the reward of {name}"),
                  _flag_of(done, f"done of {name}"), metrics_of(info))
    if not reply.messages and not reply.done:
        raise EpisodeError(f"{name} returned no observation ({observation!r}) and is not done: the model needs something to answer "
                           f"to; want {OBSERVATION}")
    return reply
