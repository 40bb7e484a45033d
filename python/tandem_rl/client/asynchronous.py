"""AsyncRolloutClient: the calls of RolloutClient (synchronous.py, which explains them) for asyncio, over grpc.aio."""
from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from .._proto import rollout_pb2 as pb
from .base import SHORT_SECONDS, ClientBase
from .caller import SERVICE
from .deadline import Deadline
from .errors import RolloutError
from .group_assembly import GroupAssembly
from .group_request import GroupOptions, check_answer, continue_request, group_request
from .results import Completion, Group, GroupSummary, Turn
from .scores import ScoreOptions, Scores, score_request, scores_of
from .server_info import ServerInfo, server_info
from .token_ids import TokenIds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

AsyncAnswer = Callable[[Turn], "TokenIds | None | Awaitable[TokenIds | None]"]


class AsyncRolloutClient(ClientBase):
    """As RolloutClient, with the same arguments. Belongs to one event loop. Cancelling a task ends its group at the server."""

    async def generate_group(self, prompt_token_ids: TokenIds, num_completions: int, *, max_new_tokens: int,
                             answer: AsyncAnswer | None = None, deadline_seconds: float | None = None,
                             **options: Unpack[GroupOptions]) -> Group:
        """As RolloutClient.generate_group. `answer` may be a coroutine function; turns are then answered at the same time."""
        async with self.stream_group(prompt_token_ids, num_completions, max_new_tokens=max_new_tokens, answer=answer,
                                     deadline_seconds=deadline_seconds, **options) as stream:
            async for _ in stream:
                pass
            return stream.group()

    def stream_group(self, prompt_token_ids: TokenIds, num_completions: int, *, max_new_tokens: int,
                     answer: AsyncAnswer | None = None, deadline_seconds: float | None = None,
                     **options: Unpack[GroupOptions]) -> AsyncGroupStream:
        """As RolloutClient.stream_group, for `async with` and `async for`."""
        request = group_request(prompt_token_ids, num_completions, max_new_tokens=max_new_tokens, run_id=self._run_id, **options)
        check_answer(request, answer is not None)
        return AsyncGroupStream(self, request, self._deadline(deadline_seconds), answer)

    async def score(self, sequences: Sequence[TokenIds], *, deadline_seconds: float | None = None,
                    **options: Unpack[ScoreOptions]) -> Scores:
        """As RolloutClient.score."""
        request = score_request(sequences, run_id=self._run_id, **options)
        return scores_of(request, await self._unary("Score", request, pb.ScoreResponse, self._deadline(deadline_seconds)))

    async def info(self) -> ServerInfo:
        """What the server says of itself."""
        return server_info(await self._unary("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse, Deadline(SHORT_SECONDS)))

    async def abort_group(self, group_id: int, *, finish_early: bool = False) -> bool:
        """As RolloutClient.abort_group."""
        request = pb.AbortGroupRequest(run_id=self._run_id, group_id=group_id, finish_early=finish_early)
        return bool((await self._unary("AbortGroup", request, pb.AbortGroupResponse, Deadline(SHORT_SECONDS))).aborted)

    async def close(self) -> None:
        """Ends the calls under way."""
        for channel in self._caller.close():
            await channel.close()

    async def __aenter__(self) -> AsyncRolloutClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _channel(self, deadline: Deadline) -> Any:
        if self._caller.needs_look():
            await asyncio.to_thread(self._caller.look, deadline.left())
        return self._caller.channel(grpc.aio)

    async def _pause(self, failure: RolloutError, deadline: Deadline) -> bool:
        """Waits until the call is worth repeating; False if it is not."""
        seconds = self._pause_seconds(failure, deadline)
        if seconds is None:
            return False
        await asyncio.sleep(seconds)
        return True

    async def _unary(self, method: str, request: Any, response: Any, deadline: Deadline) -> Any:
        while True:
            channel = await self._channel(deadline)
            call = channel.unary_unary(SERVICE + method, request_serializer=type(request).SerializeToString,
                                       response_deserializer=response.FromString)
            try:
                return await call(request, timeout=deadline.left(), metadata=self._caller.metadata)
            except grpc.RpcError as error:
                failure = self._failure(error)
                if not await self._pause(failure, deadline):
                    raise failure from error

    async def _events(self, request: pb.GenerateGroupRequest, deadline: Deadline) -> AsyncGenerator[pb.GenerateGroupResponse, None]:
        """The events of a group. Closing the generator cancels the call."""
        while True:
            channel = await self._channel(deadline)
            method = channel.unary_stream(SERVICE + "GenerateGroup",
                                          request_serializer=pb.GenerateGroupRequest.SerializeToString,
                                          response_deserializer=pb.GenerateGroupResponse.FromString)
            call = method(request, timeout=deadline.left(), metadata=self._caller.metadata)
            has_begun = False
            try:
                async for event in call:
                    has_begun = True
                    yield event
                return
            except grpc.RpcError as error:
                failure = self._failure(error)
                if has_begun or not await self._pause(failure, deadline):
                    raise failure from error
            finally:
                call.cancel()

    async def _continue(self, request: pb.GenerateGroupRequest, turn: pb.Turn, ids: TokenIds | None) -> None:
        """Answers a turn. Where the completion has ended meanwhile, the stream of the group says how."""
        try:
            await self._unary("ContinueCompletion", continue_request(request, turn, ids), pb.ContinueCompletionResponse,
                              Deadline(SHORT_SECONDS))
        except RolloutError as error:
            if error.code != "NOT_FOUND":
                raise


class AsyncGroupStream(AsyncIterator[Completion]):
    """The completions of a group in the order in which they end. Belongs to one task."""

    def __init__(self, client: AsyncRolloutClient, request: pb.GenerateGroupRequest, deadline: Deadline,
                 answer: AsyncAnswer | None) -> None:
        self._client, self._request, self._answer = client, request, answer
        self._assembly = GroupAssembly(request)
        self._events = client._events(request, deadline)
        self._answers: set[asyncio.Task[None]] = set()  # to turns, under way

    @property
    def group_id(self) -> int:
        """For abort_group."""
        return self._request.group_id

    @property
    def summary(self) -> GroupSummary | None:
        """None before the end of the stream."""
        return self._assembly.summary

    def group(self) -> Group:
        """The whole group, at the end of the stream."""
        return self._assembly.group()

    async def __anext__(self) -> Completion:
        while (event := await self._next_event()) is not None:
            taken = self._assembly.take(event)
            if isinstance(taken, Completion):
                return taken
            if isinstance(taken, Turn):
                self._answers.add(asyncio.create_task(self._answer_turn(event.turn, taken)))
        self._assembly.check_end()
        raise StopAsyncIteration

    async def close(self) -> None:
        """Cancels the call if it has not ended, which ends the group at the server, and the answers under way."""
        for task in self._answers:
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)
        await self._events.aclose()

    async def __aenter__(self) -> AsyncGroupStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _next_event(self) -> pb.GenerateGroupResponse | None:
        """The next event, None at the end. Meanwhile turns are answered; raises what an answer raised."""
        event = asyncio.create_task(self._event())
        try:
            while not event.done():
                await asyncio.wait({event, *self._answers}, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._answers if task.done()]:
                    self._answers.remove(task)
                    task.result()
            return event.result()
        finally:
            if not event.done():
                event.cancel()
                await asyncio.gather(event, return_exceptions=True)

    async def _event(self) -> pb.GenerateGroupResponse | None:
        async for event in self._events:
            return event
        return None

    async def _answer_turn(self, wire: pb.Turn, turn: Turn) -> None:
        ids = None if self._answer is None else self._answer(turn)
        await self._client._continue(self._request, wire, await ids if inspect.isawaitable(ids) else ids)
