"""Tandem in Python. Here: read_records and write_records of captures (docs/python.md), which need numpy alone; pandas, pyarrow and
what frameworks bring are imported where they are used. tandem_rl.client calls a rollout server and tandem_rl.launch starts programs
(docs/python_client.md), by their own names. What reads captures is imported on first use, so that the parts that need no numpy
(tandem_rl.rewards, tandem_rl.launch) run without it."""
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fields import RecordsError
    from .records import Records, RowFacts, TopTokens, read_records
    from .writer import write_records

__all__ = ["Records", "RecordsError", "RowFacts", "TopTokens", "read_records", "write_records"]
_HOMES = {"RecordsError": "fields", "write_records": "writer"}  # the others are in records


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES.get(name, 'records')}", __name__), name)
