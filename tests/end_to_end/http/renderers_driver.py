"""Calls renderers.client.generate. renderers_test.py runs this with the Python of .deps/engines/renderers; the request is the JSON of
the first argument (its `calls` are asked for one after the other), the answers and exceptions are printed as JSON."""
import asyncio
import json
import sys

from openai import AsyncOpenAI
from renderers import create_renderer
from renderers.base import load_tokenizer
from renderers.client import generate

SHOWN = ("request_id", "usage", "prompt_ids", "completion_ids", "completion_logprobs", "content", "finish_reason")


async def main():
    request = json.loads(sys.argv[1])
    renderer = create_renderer(load_tokenizer(request["tokenizer"]))
    answers = []
    async with AsyncOpenAI(base_url=request["url"], api_key="none", max_retries=0) as client:
        for call in request["calls"]:
            try:
                answer = await generate(client=client, renderer=renderer, model="smollm2", **call)
                answers.append({key: answer[key] for key in SHOWN})
            except Exception as error:  # pylint: disable=broad-except; the test says which is expected
                answers.append({"type": type(error).__name__, "message": str(error)})
    json.dump(answers, sys.stdout)


asyncio.run(main())
