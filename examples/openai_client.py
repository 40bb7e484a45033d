"""A rollout server through OpenAI's client: a chat token by token, and a group with what training needs of it.

    .deps/venv/bin/python examples/openai_client.py http://127.0.0.1:8000/v1
"""
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")  # a bearer token, where the server asks for one
model = client.models.list().data[0].id

messages = [{"role": "user", "content": "What is 6 times 7? Answer with the number."}]
for piece in client.chat.completions.create(model=model, messages=messages, max_tokens=24, stream=True):
    print(piece.choices[0].delta.content or "", end="", flush=True)
print()

# A group of four, with ids, behaviour log-probs and the weight versions that drew them.
group = client.chat.completions.create(model=model, messages=messages, n=4, max_tokens=24, seed=1, logprobs=True,
                                       extra_body={"return_token_ids": True})
for choice in group.choices:
    logprob = sum(entry.logprob for entry in choice.logprobs.content)
    print(f"#{choice.index} {choice.finish_reason:6} {len(choice.token_ids):3} tokens, log-prob {logprob:8.3f}, "
          f"weights {choice.weight_versions[0]['weight_version']}: {choice.message.content!r}")

# Log-probs of a text that is given: token by token, the first has none.
text = "The capital of France is Paris."
scored = client.completions.create(model=model, prompt=text, max_tokens=1, echo=True, logprobs=0).choices[0].logprobs
for token, value in list(zip(scored.tokens, scored.token_logprobs))[:-1]:
    print(f"{token!r:>12} {value if value is None else round(value, 3)}")
