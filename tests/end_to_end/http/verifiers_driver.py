"""Evaluates an environment with verifiers 0.1 through its own client. verifiers_test.py runs this with the Python of
.deps/engines/verifiers; the request is the JSON of the first argument, what verifiers saw is printed as JSON."""
import json
import sys

import tool_prompt
import verifiers as vf
import verifiers_sums
from datasets import Dataset
from verifiers.types import ClientConfig


class Again(vf.MultiTurnEnv):
    """Asks for the same once more after every turn."""

    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content="Say it again.")]


async def turns(state) -> float:
    return float(len(state["trajectory"]))


def again():
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": "Say hello in French."}], "answer": ""}])
    return Again(dataset=data, max_turns=3, rubric=vf.Rubric(funcs=[turns]))


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b


def tools():
    data = Dataset.from_list([{"question": "What is 2 + 2?", "answer": "4"}])
    return vf.ToolEnv(dataset=data, tools=[add], max_turns=3, rubric=vf.Rubric(funcs=[verifiers_sums.right]))


def calls():
    """Sums that are to be added with the tool, as the turns of the prompt show."""
    data = Dataset.from_list([{"prompt": tool_prompt.MESSAGES, "answer": "4"}])
    return vf.ToolEnv(dataset=data, tools=[add], max_turns=3, rubric=vf.Rubric(funcs=[verifiers_sums.right]))


ENVIRONMENTS = {"sums": verifiers_sums.load_environment, "again": again, "tools": tools, "calls": calls}


def plain(message):
    """verifiers has messages of two kinds."""
    if isinstance(message, dict):
        return {"role": message["role"], "content": message["content"]}
    return {"role": message.role, "content": message.content}


def main():
    request = json.loads(sys.argv[1])
    client = ClientConfig(api_base_url=request["url"], api_key_var="NO_KEY", **request.get("client", {}))
    result = ENVIRONMENTS[request["environment"]]().evaluate_sync(
        client, request.get("model", "smollm2"), sampling_args=request["sampling"],
        rollouts_per_example=request.get("rollouts", 1), state_columns=["trajectory"])
    json.dump([{
        "prompt": [plain(message) for message in one["prompt"]],
        "completion": [plain(message) for message in one["completion"]],
        "reward": one["reward"], "metrics": one["metrics"], "stop": one["stop_condition"],
        "error": (one["error"] or {}).get("error_chain_repr"), "tools": [tool.name for tool in one["tool_defs"]],
        "turns": [turn["tokens"] and {key: turn["tokens"][key] for key in ("prompt_ids", "completion_ids", "completion_logprobs")}
                  for turn in one["trajectory"]],
    } for one in result["outputs"]], sys.stdout)


main()
