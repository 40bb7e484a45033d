"""Records: what two engines say of the same tokens. The reader of capture format 3, JSON lines and Parquet
(docs/records.md), and of Tandem's own captures of formats 1, 2 and 4 (docs/run_directory.md)."""
from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .fields import COLUMNS, TOPS, RecordsError, row_id_of
from .rows import read_row

if TYPE_CHECKING:
    import pandas

Path = Union[str, "pathlib.Path"]
FACTS = ("row_id", "group_id", "finish_reason", "stop_token_kept", "reward", "advantage", "step", "proximal_version",
         "prompt_text", "completion_text")


@dataclass(frozen=True)
class RowFacts:
    """What a row says besides its tokens. None: the file does not say."""
    row_id: Optional[str] = None
    group_id: Optional[str] = None
    finish_reason: Optional[str] = None
    stop_token_kept: Optional[bool] = None
    reward: Optional[float] = None
    advantage: Optional[float] = None
    step: Optional[int] = None
    proximal_version: Optional[int] = None
    spans: tuple[tuple[int, int], ...] = ()  # (version, number of drawn tokens), in order; empty: not known
    prompt_text: Optional[str] = None
    completion_text: Optional[str] = None


@dataclass(frozen=True)
class TopTokens:
    """The most probable tokens of each position: those of token n are [offsets[n], offsets[n + 1])."""
    offsets: NDArray[np.int64]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True)
class Records:
    """All rows of a file. Element n of every per-token array is about token n given the tokens of its row before it.

    S rows, N tokens of all rows, prompts included. `columns` has the names of docs/records.md, without those that no row
    has; NaN where there is no value. `num_given` counts the elements of a column that the file gives, "NaN" among them.
    """
    path: str
    header: dict[str, Any]
    token_ids: NDArray[np.int32]  # [N]
    offsets: NDArray[np.int64]    # [S + 1]
    drawn: NDArray[np.bool_]      # [N] drawn by the behaviour policy
    rows: tuple[RowFacts, ...]    # [S]
    columns: dict[str, NDArray[np.float32]]
    num_given: dict[str, int]
    tops: dict[str, TopTokens] = field(default_factory=dict)  # of "behaviour" and "proximal"

    def __len__(self) -> int:
        return len(self.rows)

    def slice_of(self, row: int) -> slice:
        """The tokens of a row, of every per-token array."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    @property
    def row_of_token(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.rows)), np.diff(self.offsets))

    @property
    def position(self) -> NDArray[np.int64]:
        """[N] place of each token in its row."""
        return np.arange(len(self.token_ids)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    @property
    def turn(self) -> NDArray[np.int64]:
        """[N] the turn that drew the token: 1 for the first run of drawn tokens in its row, and so on; 0: not drawn."""
        begins = self.drawn.copy()
        begins[1:] &= ~self.drawn[:-1]
        starts = self.offsets[:-1][np.diff(self.offsets) > 0]
        begins[starts] = self.drawn[starts]
        ended = np.concatenate([[0], np.cumsum(begins)])  # [N + 1] turns that began before a token, over all rows
        return np.where(self.drawn, ended[1:] - np.repeat(ended[self.offsets[:-1]], np.diff(self.offsets)), 0)

    @property
    def delta(self) -> NDArray[np.float64]:
        """[N] proximal minus behaviour log-prob, nats; NaN where a side has no value and where nothing was drawn."""
        behaviour, proximal = self.column("behaviour_logprobs"), self.column("proximal_logprobs")
        with np.errstate(invalid="ignore"):
            return np.where(self.drawn, proximal.astype(np.float64) - behaviour.astype(np.float64), np.nan)

    def column(self, name: str) -> NDArray[np.float32]:
        """[N] the column; all NaN where no row has it."""
        if name not in COLUMNS:
            raise KeyError(f"{name}: expected one of {', '.join(COLUMNS)}")
        found = self.columns.get(name)
        return np.full(len(self.token_ids), np.nan, np.float32) if found is None else found

    def as_rows(self) -> Iterator[dict[str, Any]]:
        """The rows as write_records takes them. NaN stands for null."""
        for row, facts in enumerate(self.rows):
            tokens = self.slice_of(row)
            given: dict[str, Any] = {"token_ids": self.token_ids[tokens], "loss_mask": self.drawn[tokens].astype(int)}
            for name, values in self.columns.items():
                is_kept = name in ("behaviour_logprobs", "proximal_logprobs") or not np.isnan(values[tokens]).all()
                if is_kept and not (name == "advantages" and facts.advantage is not None):
                    given[name] = values[tokens]
            for side, top in self.tops.items():
                ends = [slice(top.offsets[n], top.offsets[n + 1]) for n in range(tokens.start, tokens.stop)]
                if any(end.start < end.stop for end in ends):
                    given[f"{side}_top_ids"] = [top.ids[end] for end in ends]
                    given[f"{side}_top_logprobs"] = [top.logprobs[end] for end in ends]
            if facts.spans:
                given["version_spans"] = [list(span) for span in facts.spans]
            given.update({name: value for name in FACTS if (value := getattr(facts, name)) is not None})
            yield given

    def to_pandas(self) -> pandas.DataFrame:
        """One line per token: row, position, token_id, drawn, turn, the columns, delta, weight_version, group_id, step,
        reward."""
        import pandas

        versions = np.full(len(self.token_ids), np.nan)
        for row, facts in enumerate(self.rows):
            if facts.spans:
                places = np.flatnonzero(self.drawn[self.slice_of(row)]) + self.offsets[row]
                versions[places] = np.repeat([float(version) for version, _ in facts.spans],
                                             [count for _, count in facts.spans])
        row_of_token = self.row_of_token
        facts_of = {name: [getattr(facts, name) for facts in self.rows] for name in ("group_id", "step", "reward")}
        per_row = {name: pandas.Series(values).take(row_of_token).to_numpy() for name, values in facts_of.items()
                   if any(value is not None for value in values)}
        return pandas.DataFrame({"row": row_of_token, "position": self.position, "token_id": self.token_ids, "drawn": self.drawn,
                                 "turn": self.turn, **self.columns, "delta": self.delta, "weight_version": versions, **per_row})


class RecordsBuilder:
    """Takes rows one after the other; holds arrays only."""

    def __init__(self, path: str, header: dict[str, Any]) -> None:
        self.path, self.header = path, header
        self.rows: list[dict[str, Any]] = []
        self.facts: list[RowFacts] = []

    def add(self, row: Mapping[str, Any], place: str) -> None:
        """Errors name `place` and the row."""
        try:
            fields = read_row(row, self.header.get("vocab_size"))
        except RecordsError as error:
            raise RecordsError(f"{place}{row_id_of(row)}: {error}") from None
        spans = fields.get("version_spans", [])
        num_drawn = int(fields["drawn"].sum())
        if not spans and "weight_version" in fields and num_drawn:
            spans = [(fields["weight_version"], num_drawn)]
        self.facts.append(RowFacts(spans=tuple(spans), **{name: fields[name] for name in FACTS if name in fields}))
        self.rows.append({name: value for name, value in fields.items()
                          if name in ("token_ids", "drawn") or name in COLUMNS or "_top_" in name})

    def finish(self) -> Records:
        lengths = [len(row["token_ids"]) for row in self.rows]
        columns, num_given = {}, {}
        for name in COLUMNS:
            if any(name in row for row in self.rows):
                parts = [row[name] if name in row else (np.full(length, np.nan, np.float32), 0)
                         for row, length in zip(self.rows, lengths)]
                columns[name] = np.concatenate([values for values, _ in parts])
                num_given[name] = sum(given for _, given in parts)
        return Records(
            path=self.path, header=self.header, rows=tuple(self.facts), columns=columns, num_given=num_given,
            token_ids=np.concatenate([np.empty(0, np.int32), *(row["token_ids"] for row in self.rows)]),
            drawn=np.concatenate([np.empty(0, bool), *(row["drawn"] for row in self.rows)]),
            offsets=np.cumsum([0, *lengths], dtype=np.int64),
            tops={side: self.top(side, lengths) for side in TOPS
                  if any(f"{side}_top_ids" in row for row in self.rows)})

    def top(self, side: str, lengths: list[int]) -> TopTokens:
        ids = [one for row, length in zip(self.rows, lengths)
               for one in row.get(f"{side}_top_ids", [np.empty(0, np.int32)] * length)]
        logprobs = [one for row, length in zip(self.rows, lengths)
                    for one in row.get(f"{side}_top_logprobs", [np.empty(0, np.float32)] * length)]
        return TopTokens(np.cumsum([0, *map(len, ids)], dtype=np.int64), np.concatenate(ids), np.concatenate(logprobs))


def read_records(path: Path) -> Records:
    """Reads a file of format 3 or a capture directory of formats 1, 2 and 4.

    Raises FileNotFoundError, or RecordsError, whose message says file, line or row, field, what was expected and found.
    """
    from .capture import read_capture
    from .form import parquet_rows, json_rows, form_of

    if pathlib.Path(path).is_dir():
        return read_capture(path)
    header, rows = (parquet_rows if form_of(path) == "parquet" else json_rows)(path)
    builder = RecordsBuilder(str(path), header)
    for place, row in rows:
        builder.add(row, place)
    return builder.finish()
