"""The loop of an adapter: requests in JSON lines in, replies in JSON lines out (docs/engines.md). Standard output carries
replies alone: what libraries print there goes to standard error."""
from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from .requests import (PROTOCOL, Engine, Refused, completion_json, sample_request, score_json, score_request)

DTYPES = {"": "", "fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16",
          "f16": "float16", "float16": "float16", "f32": "float32"}


@dataclass
class Arguments:
    """How an adapter was started."""
    model: str
    dtype: str = ""  # as given; empty: the engine's own choice
    options: dict[str, str] = field(default_factory=dict)

    def option(self, name: str, default: str) -> str:
        return self.options.get(name, default)

    def integer(self, name: str, default: int) -> int:
        try:
            return int(self.options.get(name, default))
        except ValueError:
            raise Refused("invalid", f"--option {name}: expected an integer, found {self.options[name]!r}") from None

    def long_dtype(self) -> str:
        """The dtype by the name that PyTorch has for it."""
        if self.dtype not in DTYPES:
            raise Refused("invalid", f"--dtype: expected one of fp32, bf16 and fp16, found {self.dtype!r}")
        return DTYPES[self.dtype]

    def allow(self, *names: str) -> None:
        for name in self.options:
            if name not in names:
                raise Refused("invalid", f"--option {name}: there is none of this name; there are {', '.join(names)}")


def answer(engine: Engine, request: Any) -> dict[str, Any]:
    """The reply to one request, without its id. Raises Refused."""
    if not isinstance(request, dict) or not isinstance(request.get("do"), str):
        raise Refused("invalid", 'expected an object with "do"')
    do = request["do"]
    if do == "info":
        info = engine.info()
        return {"protocol": PROTOCOL, "engine": info.engine, "version": info.version, "dtype": info.dtype, "can": info.can,
                "details": info.details}
    if do == "sample":
        return {"completions": [completion_json(completion) for completion in engine.sample(sample_request(request))]}
    if do == "score":
        return {"rows": [score_json(score) for score in engine.score(score_request(request))]}
    if do == "load_weights":
        directory = request.get("directory")
        if not isinstance(directory, str) or not os.path.isdir(directory):
            raise Refused("invalid", f"directory: expected the path of a directory, found {directory!r}")
        engine.load_weights(directory)
        return {"loaded": directory}
    raise Refused("invalid", f"do: expected info, sample, score or load_weights, found {do!r}")


def reply_to(engine: Engine, line: str) -> dict[str, Any]:
    """The reply to one line. An exception of the engine is a reply too, with its traceback on standard error."""
    request: Any = None
    try:
        try:
            request = json.loads(line)
        except ValueError as error:
            raise Refused("invalid", f"not a line of JSON: {error}") from None
        reply = answer(engine, request)
    except Refused as refused:
        reply = {"error": {"kind": refused.kind, "message": str(refused)}}
    except Exception as error:  # pylint: disable=broad-exception-caught
        traceback.print_exc(file=sys.stderr)
        reply = {"error": {"kind": "failed", "message": f"{type(error).__name__}: {error}"}}
    return {"id": request.get("id") if isinstance(request, dict) else None, **reply}


def serve(engine: Engine, requests: Iterable[str], replies: TextIO) -> None:
    """Answers every line in order, each before the next is read."""
    for line in requests:
        if line.strip():
            replies.write(json.dumps(reply_to(engine, line), allow_nan=False) + "\n")
            replies.flush()


def parse(arguments: list[str] | None, what: str) -> tuple[Arguments, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog=f"python -m tandem_rl.engines.{what}", description=f"{what} behind the protocol of docs/engines.md")
    parser.add_argument("--model", required=True, help="Hugging Face directory, or what the engine takes in its place")
    parser.add_argument("--dtype", default="", help="fp32, bf16, ...; default: the engine's own choice")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of this engine; may be repeated")
    parser.add_argument("--requests", help="a file of requests in place of standard input")
    parser.add_argument("--replies", help="a file of replies in place of standard output")
    parsed = parser.parse_args(arguments)
    options = {}
    for option in parsed.option:
        name, found, value = option.partition("=")
        if not found:
            parser.error(f"--option {option}: expected NAME=VALUE")
        options[name] = value
    return Arguments(parsed.model, parsed.dtype, options), parsed


def run(what: str, make: Callable[[Arguments], Engine], arguments: list[str] | None = None) -> int:
    """The main function of an adapter. Exit codes: 0 the requests ended, 2 wrong arguments, 1 the engine did not start."""
    started, parsed = parse(arguments, what)
    # Children and C libraries write to descriptor 1, which from here on is that of standard error.
    own_output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        engine = make(started)
    except Refused as refused:
        print(f"{what}: {refused}", file=sys.stderr)
        return 2 if refused.kind == "invalid" else 1
    except Exception as error:  # pylint: disable=broad-exception-caught
        traceback.print_exc(file=sys.stderr)
        print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    replies = open(parsed.replies, "w", encoding="utf-8") if parsed.replies else own_output  # pylint: disable=consider-using-with
    requests = open(parsed.requests, encoding="utf-8") if parsed.requests else sys.stdin  # pylint: disable=consider-using-with
    with replies, requests:
        serve(engine, requests, replies)
    return 0
