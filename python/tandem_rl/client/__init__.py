"""A client of the rollout server in Python (docs/python_client.md): RolloutClient, and AsyncRolloutClient for asyncio. Both ask for
groups of completions and for scores, and give numpy arrays."""
from .asynchronous import AsyncGroupStream, AsyncRolloutClient
from .errors import InvalidRequest, NotReachable, RolloutError, ServerBusy
from .group_request import GroupOptions
from .results import Completion, Group, GroupSummary, Segment, TopLogprobs, Turn, VersionSpan
from .scores import ScoreOptions, Scores, SequenceScore
from .server_info import ServerInfo
from .synchronous import GroupStream, RolloutClient

__all__ = ["AsyncGroupStream", "AsyncRolloutClient", "Completion", "Group", "GroupOptions", "GroupStream", "GroupSummary",
           "InvalidRequest", "NotReachable", "RolloutClient", "RolloutError", "ScoreOptions", "Scores", "Segment", "SequenceScore",
           "ServerBusy", "ServerInfo", "TopLogprobs", "Turn", "VersionSpan"]
