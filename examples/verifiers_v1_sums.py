"""Sums of small numbers for verifiers 0.4 (docs/vllm_api.md): the tasks, and a harness that asks once. The harnesses which come with
verifiers are programs with an environment of their own, which uv downloads; this one asks from the process of the evaluation.

    PYTHONPATH=examples .deps/engines/renderers/bin/vf-eval verifiers_v1_sums -m smollm2 --client.base-url http://127.0.0.1:8000/v1
"""
import openai
import verifiers.v1 as vf

PAIRS = [(2, 2), (3, 4), (1, 5)]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.assistant_messages[-1].content)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.assistant_messages[-1].content) < 40)


class SumsTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(idx=i, prompt=f"What is {a} + {b}?", answer=str(a + b)), self.config.task)
                for i, (a, b) in enumerate(PAIRS)]


class AskingHarness(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        _, prompt = self.resolve_prompt(data)
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            await client.chat.completions.create(model=ctx.model, messages=[{"role": "user", "content": prompt}])
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["SumsTaskset", "AskingHarness"]
