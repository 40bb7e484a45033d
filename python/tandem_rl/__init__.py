"""Tandem's captures in Python: read_records and write_records (docs/python.md). Imports numpy alone; pandas, pyarrow and
what frameworks bring are imported where they are used."""
from .fields import RecordsError
from .records import Records, RowFacts, TopTokens, read_records
from .writer import write_records

__all__ = ["Records", "RecordsError", "RowFacts", "TopTokens", "read_records", "write_records"]
