"""A completion depends only on weights, prompt, sampling, seed and index, and not on the number of servers and their
settings."""
import array
import concurrent.futures
import contextlib

import pytest

from rollout_client import Server, load_stubs

rollout, rollout_grpc, _, _ = load_stubs()
NUM_GROUPS, MEMBERS = 12, 6


def ask(server, group):
    request = rollout.GenerateGroupRequest(
        group_id=group, num_completions=MEMBERS,
        prompt_token_ids=[3 + (group * 31 + i * 17) % 300 for i in range(1 + group * 9)],
        sampling=rollout.SamplingParams(temperature=0.9, top_p=0.95, max_new_tokens=20 + group, seed=group * 7 + 1))
    answers = rollout_grpc.RolloutServiceStub(server.channel).GenerateGroup(request, timeout=120)
    completions = [answer.completion for answer in answers if answer.HasField("completion")]
    # Bytes instead of numbers, so that equal means equal bits.
    return {c.index: [array.array(kind, values).tobytes() for kind, values in
                      (("i", c.token_ids), ("f", c.behaviour_logprobs), ("f", c.entropies))] for c in completions}


def engine_flags(**engine):
    return [part for name, value in engine.items() for part in ("--set", f"server.engine.{name}={value}")]


def ask_all(servers):
    """Sends all groups at once, group g to server g mod n. Returns the groups by number."""
    with concurrent.futures.ThreadPoolExecutor(NUM_GROUPS) as pool:
        return list(pool.map(lambda g: ask(servers[g % len(servers)], g), range(NUM_GROUPS)))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_server_or_two_give_the_same_bits(model, dtype):
    def serve(*flags):
        return Server(model, "--dtype", dtype, "--numerics", "invariant", *flags)

    with serve() as alone:
        want = ask_all([alone])
    assert all(len(group) == MEMBERS for group in want)
    with contextlib.ExitStack() as stack:
        small = serve(*engine_flags(num_threads=1, max_step_tokens=64, max_batch_sequences=7))
        plain = serve(*engine_flags(num_threads=2, prefix_cache="false", kv_capacity_tokens=1536))
        pair = [stack.enter_context(small), stack.enter_context(plain)]
        assert ask_all(pair) == want
        assert ask_all(pair[::-1]) == want
