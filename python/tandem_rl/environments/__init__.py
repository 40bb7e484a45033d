"""Environments in which the model takes several turns (docs/environments.md). `worker` is the process that Tandem starts; it
plays episodes of one of four kinds: `python_objects` (classes of users), `tool_functions` (functions as tools), `openenv_client`
(servers of OpenEnv) and `verifiers_rollouts` (environments of the package verifiers). `TextEnvironment` is a base for the first
kind. Without the last two it needs the standard library alone."""
from .base import Message, Observation, TextEnvironment

__all__ = ["Message", "Observation", "TextEnvironment"]
