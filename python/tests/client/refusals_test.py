"""What a real server refuses, as exceptions. A group of several turns holds the server's only place for as long as a test wants."""
import asyncio
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from free_ports import free_address
from waiting import wait_until

from tandem_rl.client import (AsyncRolloutClient, InvalidRequest, NotReachable, RolloutClient, RolloutError, ServerBusy,
                              synchronous)

ALL_IDS = range(354)  # as stop ids, they end a turn after one token
HOLD = {"max_new_tokens": 2, "stop_token_ids": ALL_IDS, "max_turns": 3, "max_completion_tokens": 40, "seed": 1}


@pytest.fixture
def small(start):
    """One completion runs and one group waits; more are refused."""
    return start(settings={"server.max_queued_groups": 1, "server.engine.max_batch_sequences": 1})


@pytest.fixture
def client(small):
    with small.client() as one:
        yield one


@pytest.fixture
def held(client):
    """A group that holds the place until `release` is set."""
    is_held, release = threading.Event(), threading.Event()

    def answer(turn):
        is_held.set()
        assert release.wait(120)
    with ThreadPoolExecutor(1) as pool:
        group = pool.submit(client.generate_group, [5], 1, answer=answer, **HOLD)
        assert is_held.wait(120)
        try:
            yield types.SimpleNamespace(group=group, release=release)
        finally:
            release.set()


@pytest.fixture
def full(client, held):
    """The place is held, and the queue is full."""
    with ThreadPoolExecutor(1) as pool:
        held.waiting = pool.submit(client.generate_group, [5], 1, max_new_tokens=2)
        wait_until(lambda: client.info().num_groups_queued == 1, "one group waits")
        yield held
        held.release.set()


def test_a_full_queue_is_a_busy_server_that_says_when_to_ask_again(small, full):
    with RolloutClient(small.address, retry_busy=False) as other, pytest.raises(ServerBusy, match="1 groups? wait") as refused:
        other.generate_group([5], 1, max_new_tokens=2)
    assert (refused.value.code, refused.value.refusal) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    assert 0.05 <= refused.value.retry_after_seconds <= 10, "from its recent pace, within these bounds"

    async def ask():
        async with AsyncRolloutClient(small.address, retry_busy=False) as other:
            await other.generate_group([5], 1, max_new_tokens=2)
    with pytest.raises(ServerBusy) as again:
        asyncio.run(ask())
    assert again.value.refusal == "QUEUE_FULL" and 0.05 <= again.value.retry_after_seconds <= 10


def test_a_busy_server_is_asked_again_when_it_says(client, full, monkeypatch):
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        full.release.set()
        wait_until(lambda: client.info().num_groups_queued == 0, "the queue empties")
    monkeypatch.setattr(synchronous, "time", types.SimpleNamespace(sleep=sleep))
    group = client.generate_group([5], 1, max_new_tokens=2)
    assert len(pauses) == 1 and 0.05 <= pauses[0] <= 10 and len(group.completions) == 1
    assert len(full.group.result(60).completions) == len(full.waiting.result(60).completions) == 1


def test_the_asynchronous_client_asks_again_too(small, client, full, monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        full.release.set()
        wait_until(lambda: client.info().num_groups_queued == 0, "the queue empties")

    async def ask():
        async with AsyncRolloutClient(small.address) as other:
            return await other.generate_group([5], 1, max_new_tokens=2)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    group = asyncio.run(ask())
    assert len(pauses) == 1 and 0.05 <= pauses[0] <= 10 and len(group.completions) == 1


def test_a_deadline_that_passes_is_an_error_of_its_own(client, held):
    with pytest.raises(RolloutError) as late:
        client.generate_group([5], 1, max_new_tokens=2, deadline_seconds=0.2)
    assert late.value.code == "DEADLINE_EXCEEDED" and type(late.value) is RolloutError
    wait_until(lambda: client.info().num_groups_queued == 0, "the server has freed it")


def test_a_group_that_waits_can_be_aborted(client, held):
    with client.stream_group([5], 1, max_new_tokens=2) as stream, ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, stream)
        wait_until(lambda: client.info().num_groups_queued == 1, "it waits")
        assert client.abort_group(stream.group_id)
        with pytest.raises(RolloutError) as ended:
            first.result(60)
    assert ended.value.code == "ABORTED"
    assert not client.abort_group(stream.group_id), "it is gone"


def test_an_exception_of_the_caller_ends_the_group_at_the_server(client):
    running = []

    def answer(turn):
        running.append(client.info().num_groups_running)
        raise KeyError("the caller's own")
    with pytest.raises(KeyError, match="own"), client.stream_group([5], 1, answer=answer, **HOLD) as stream:
        next(stream)
    assert running == [1]
    wait_until(lambda: client.info().num_groups_running == 0, "it does not wait for its deadline")


def test_an_exception_of_a_coroutine_that_answers_ends_the_group_too(small, client):
    async def answer(turn):
        await asyncio.to_thread(client.info)
        raise KeyError("the caller's own")

    async def main():
        async with AsyncRolloutClient(small.address) as other:
            await other.generate_group([5], 1, answer=answer, **HOLD)
    with pytest.raises(KeyError, match="own"):
        asyncio.run(main())
    wait_until(lambda: client.info().num_groups_running == 0, "it does not wait for its deadline")


def test_a_cancelled_task_frees_its_group(small, client, held):
    async def main():
        async with AsyncRolloutClient(small.address) as other:
            task = asyncio.create_task(other.generate_group([5], 1, max_new_tokens=2))
            await asyncio.to_thread(wait_until, lambda: client.info().num_groups_queued == 1, "it waits")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    asyncio.run(main())
    wait_until(lambda: client.info().num_groups_queued == 0, "it is gone")


def test_a_group_is_aborted_by_its_own_caller_alone(small, client):
    asked = []

    def answer(turn):
        with small.client() as stranger:
            asked.append(stranger.abort_group(stream.group_id))
        asked.append(client.abort_group(stream.group_id))
    with client.stream_group([5], 1, answer=answer, **HOLD) as stream, pytest.raises(RolloutError) as ended:
        list(stream)
    assert asked == [False, True] and ended.value.code == "ABORTED" and str(stream.group_id) in str(ended.value)


def test_a_group_that_ends_early_brings_what_it_has(client):
    def answer(turn):
        assert client.abort_group(stream.group_id, finish_early=True)
    with client.stream_group([5], 1, answer=answer, **HOLD) as stream:
        (completion,) = stream
    assert completion.finish_reason == "stopped_early" and len(completion.token_ids) == 1 and stream.summary.incomplete


@pytest.mark.parametrize("prompt, arguments, words", [
    ([5, 354], {}, r"prompt_token_ids\[1\] is 354, want 0 to 353"),
    ([], {}, "prompt_token_ids is empty"),
    ([5], {"top_p": 1.5}, "top_p"),
    ([5], {"max_new_tokens": 600}, "512"),
    ([5.5], {}, "want a row of integers"),
    ([2**31], {}, "outside the range of int32"),
    ([5], {"seed": -1}, "does not fit"),
    ([5], {"deadline_seconds": 0}, "want more than 0"),
    ([5], {"max_turns": 2}, "no `answer`"),
])
def test_a_wrong_argument_is_an_invalid_request_that_names_it(client, prompt, arguments, words):
    with pytest.raises(InvalidRequest, match=words) as refused:
        client.generate_group(prompt, 1, **{"max_new_tokens": 4, **arguments})
    assert (refused.value.code, refused.value.refusal) == ("INVALID_ARGUMENT", "")


def test_a_deadline_beyond_the_servers_maximum_is_refused_by_name(client):
    with pytest.raises(InvalidRequest, match="max_deadline_seconds") as refused:
        client.generate_group([5], 1, max_new_tokens=4, deadline_seconds=1e6)
    assert (refused.value.code, refused.value.refusal) == ("INVALID_ARGUMENT", "DEADLINE_TOO_FAR")


@pytest.mark.parametrize("rows, arguments, words", [
    ([[5]], {}, "1 ids"), ([[5, 6], [5, 400]], {}, "400"), ([[5, 6]], {"path": "sideways"}, "prefill or decode"),
    ([[5, 6]], {"num_prompt_tokens": [1, 1]}, "2 numbers for 1 sequences"), ([[5, 6]], {"body_bits": 1}, "bits"),
])
def test_a_wrong_argument_of_a_score_is_an_invalid_request_too(client, rows, arguments, words):
    with pytest.raises(InvalidRequest, match=words):
        client.score(rows, **arguments)


def test_an_argument_of_another_name_is_a_type_error(client):
    with pytest.raises(TypeError, match="temprature"):
        client.generate_group([5], 1, max_new_tokens=4, temprature=0.5)


def test_where_no_server_is_it_is_not_reachable():
    with RolloutClient(free_address(), deadline_seconds=30) as client, pytest.raises(NotReachable) as refused:
        client.generate_group([5], 1, max_new_tokens=4)
    assert refused.value.code == "UNAVAILABLE" and client.address in str(refused.value)
