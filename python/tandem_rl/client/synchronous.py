"""RolloutClient: calls of a rollout server that return when they are done. asynchronous.py has the same for asyncio."""
from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc

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

Answer = Callable[[Turn], "TokenIds | None"]


class RolloutClient(ClientBase):
    """A client of the rollout server at `address`, HOST:PORT. Thread-safe. Connects with the first call, and not after a fork:
    make one client in each process.

    ClientBase explains the arguments. Errors of calls are RolloutError, or one of its subclasses."""

    def generate_group(self, prompt_token_ids: TokenIds, num_completions: int, *, max_new_tokens: int, answer: Answer | None = None,
                       deadline_seconds: float | None = None, **options: Unpack[GroupOptions]) -> Group:
        """Samples `num_completions` completions of one prompt, [P] ids with P >= 1. GroupOptions has the other arguments.
        `answer` is called at the end of each turn of a completion with max_turns above 1: it returns the ids to go on with, or None
        to finish the completion.

        RolloutError has the codes of docs/rollouts.md (Refusals): ServerBusy where the queue or the memory is full until the
        deadline, InvalidRequest where an argument is out of range or the group too large, NotReachable, DEADLINE_EXCEEDED, ABORTED
        (abort_group, or a weight push with the policy abort), DATA_LOSS (the group or the answer is broken)."""
        with self.stream_group(prompt_token_ids, num_completions, max_new_tokens=max_new_tokens, answer=answer,
                               deadline_seconds=deadline_seconds, **options) as stream:
            for _ in stream:
                pass
            return stream.group()

    def stream_group(self, prompt_token_ids: TokenIds, num_completions: int, *, max_new_tokens: int, answer: Answer | None = None,
                     deadline_seconds: float | None = None, **options: Unpack[GroupOptions]) -> GroupStream:
        """As generate_group, but gives each completion when it ends. Use it in a with statement: leaving it early ends the group at
        the server. A busy server is asked again before the first completion only. The stream waits while `answer` runs: turns are answered one after the other."""
        request = group_request(prompt_token_ids, num_completions, max_new_tokens=max_new_tokens, run_id=self._run_id, **options)
        check_answer(request, answer is not None)
        return GroupStream(self, request, self._deadline(deadline_seconds), answer)

    def score(self, sequences: Sequence[TokenIds], *, deadline_seconds: float | None = None,
              **options: Unpack[ScoreOptions]) -> Scores:
        """What the sampler would have recorded for given ids under the live weights: B sequences of 2 ids or more, 65536 ids in all.
        ScoreOptions has the other arguments. RolloutError as generate_group; ABORTED: new weights were committed meanwhile."""
        request = score_request(sequences, run_id=self._run_id, **options)
        return scores_of(request, self._unary("Score", request, pb.ScoreResponse, self._deadline(deadline_seconds)))

    def info(self) -> ServerInfo:
        """What the server says of itself."""
        return server_info(self._unary("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse, Deadline(SHORT_SECONDS)))

    def abort_group(self, group_id: int, *, finish_early: bool = False) -> bool:
        """Ends a group of this caller (the same secret); False if it has none of that number in flight. With `finish_early` the
        group's call gets what was sampled so far, else it fails with ABORTED."""
        request = pb.AbortGroupRequest(run_id=self._run_id, group_id=group_id, finish_early=finish_early)
        return bool(self._unary("AbortGroup", request, pb.AbortGroupResponse, Deadline(SHORT_SECONDS)).aborted)

    def close(self) -> None:
        """Ends the calls under way."""
        for channel in self._caller.close():
            channel.close()

    def __enter__(self) -> RolloutClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _channel(self, deadline: Deadline) -> Any:
        if self._caller.needs_look():
            self._caller.look(deadline.left())
        return self._caller.channel(grpc)

    def _pause(self, failure: RolloutError, deadline: Deadline) -> bool:
        """Waits until the call is worth repeating; False if it is not."""
        seconds = self._pause_seconds(failure, deadline)
        if seconds is None:
            return False
        time.sleep(seconds)
        return True

    def _unary(self, method: str, request: Any, response: Any, deadline: Deadline) -> Any:
        while True:
            channel = self._channel(deadline)
            call = channel.unary_unary(SERVICE + method, request_serializer=type(request).SerializeToString,
                                       response_deserializer=response.FromString)
            try:
                return call(request, timeout=deadline.left(), metadata=self._caller.metadata)
            except grpc.RpcError as error:
                failure = self._failure(error)
                if not self._pause(failure, deadline):
                    raise failure from error

    def _events(self, request: pb.GenerateGroupRequest, deadline: Deadline) -> Generator[pb.GenerateGroupResponse, None, None]:
        """The events of a group. Closing the generator cancels the call."""
        while True:
            channel = self._channel(deadline)
            method = channel.unary_stream(SERVICE + "GenerateGroup",
                                          request_serializer=pb.GenerateGroupRequest.SerializeToString,
                                          response_deserializer=pb.GenerateGroupResponse.FromString)
            call = method(request, timeout=deadline.left(), metadata=self._caller.metadata)
            has_begun = False
            try:
                for event in call:
                    has_begun = True
                    yield event
                return
            except grpc.RpcError as error:
                failure = self._failure(error)
                if has_begun or not self._pause(failure, deadline):
                    raise failure from error
            finally:
                call.cancel()

    def _continue(self, request: pb.GenerateGroupRequest, turn: pb.Turn, ids: TokenIds | None) -> None:
        """Answers a turn. Where the completion has ended meanwhile, the stream of the group says how."""
        try:
            self._unary("ContinueCompletion", continue_request(request, turn, ids), pb.ContinueCompletionResponse,
                        Deadline(SHORT_SECONDS))
        except RolloutError as error:
            if error.code != "NOT_FOUND":
                raise


class GroupStream(Iterator[Completion]):
    """The completions of a group in the order in which they end. Belongs to one thread."""

    def __init__(self, client: RolloutClient, request: pb.GenerateGroupRequest, deadline: Deadline, answer: Answer | None) -> None:
        self._client, self._request, self._answer = client, request, answer
        self._assembly = GroupAssembly(request)
        self._events = client._events(request, deadline)

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

    def __next__(self) -> Completion:
        for event in self._events:
            taken = self._assembly.take(event)
            if isinstance(taken, Completion):
                return taken
            if isinstance(taken, Turn):
                ids = None if self._answer is None else self._answer(taken)
                self._client._continue(self._request, event.turn, ids)
        self._assembly.check_end()
        raise StopIteration

    def close(self) -> None:
        """Cancels the call if it has not ended, which ends the group at the server."""
        self._events.close()

    def __enter__(self) -> GroupStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
