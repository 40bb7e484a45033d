"""Tandem's own captures, directories of formats 1, 2 and 4 (docs/run_directory.md), as Records. Needs numpy alone."""
from __future__ import annotations

import json
import pathlib
from itertools import groupby
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from .fields import FORMAT, RecordsError
from .records import Records, RowFacts

Path = Union[str, "pathlib.Path"]
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
          "BOOL": "?"}
# What a capture must have, and of which type. G groups, S completions, T tokens (docs/run_directory.md).
COLUMNS = {"group_id": "I64", "prompt_ids": "I32", "prompt_offsets": "I64", "group": "I32", "token_offsets": "I64",
           "reward": "F64", "masked": "U8", "finish": "U8", "token_ids": "I32", "behaviour_logprobs": "F32",
           "raw_logprobs": "F32", "proximal_logprobs": "F32", "entropies": "F32", "advantages": "F32",
           "weight_version": "I64"}
PER_TOKEN = {"behaviour_logprobs": "behaviour_logprobs", "raw_logprobs": "behaviour_raw_logprobs",
             "proximal_logprobs": "proximal_logprobs", "entropies": "behaviour_entropy", "advantages": "advantages"}
FINISH = {1: "stop", 2: "length", 3: "stop", 4: "stopped early"}


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file whose types numpy has. Raises RecordsError where the file is cut short."""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise RecordsError(f"{path}: expected safetensors, found a file of {len(data)} bytes that is cut short or another")
    try:
        header = json.loads(data[8:8 + size])
    except ValueError:
        raise RecordsError(f"{path}: expected safetensors, found a header that is not JSON") from None
    tensors = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        dtype = np.dtype(DTYPES.get(tensor["dtype"], "V1"))
        if tensor["dtype"] not in DTYPES or not 0 <= begin <= end <= len(data) - 8 - size or (
                end - begin != dtype.itemsize * int(np.prod(tensor["shape"]))):
            raise RecordsError(f"{path}: {name}: expected a {tensor['dtype']} tensor of shape {tensor['shape']} within the "
                               f"file, found bytes {begin} to {end} of {len(data) - 8 - size}")
        tensors[name] = np.frombuffer(data, dtype, offset=8 + size + begin,
                                      count=(end - begin) // dtype.itemsize).reshape(tensor["shape"])
    return tensors


def read_manifest(path: pathlib.Path) -> dict[str, Any]:
    file = path / "manifest.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} has no manifest.json: its writing did not end; make it again")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != "tandem-capture":
        raise RecordsError(f'{file}: not the manifest of a capture ("format" must be "tandem-capture")')
    if manifest.get("format_version") not in (1, 2, 4):
        raise RecordsError(f"{file}: format_version {manifest.get('format_version')}, this program reads 1, 2 and 4")
    return manifest


def check_digest(path: pathlib.Path, manifest: dict[str, Any]) -> None:
    """Only where xxhash is installed."""
    try:
        import xxhash
    except ImportError:
        return
    digest = xxhash.xxh3_128_hexdigest(path.read_bytes())
    if digest != manifest.get("columns_digest"):
        raise RecordsError(f"{path} is not the file its manifest was written for (digest {digest}, the manifest says "
                           f"{manifest.get('columns_digest', 'nothing')}): it was cut short or changed")


def check_columns(path: pathlib.Path, columns: dict[str, NDArray[Any]]) -> None:
    for name, dtype in COLUMNS.items():
        if name not in columns:
            raise RecordsError(f"{path}: column {name} is missing")
        if columns[name].dtype != np.dtype(DTYPES[dtype]) or columns[name].ndim != 1:
            raise RecordsError(f"{path}: column {name} must be {dtype} of one dimension")
    num_tokens = len(columns["token_ids"])
    for offsets, end, entries in (("token_offsets", num_tokens, len(columns["group"]) + 1),
                                  ("prompt_offsets", len(columns["prompt_ids"]), len(columns["group_id"]) + 1)):
        values = columns[offsets]
        if len(values) != entries or values[0] != 0 or values[-1] != end or np.any(np.diff(values) < 0):
            raise RecordsError(f"{path}: column {offsets} does not rise from 0 to {end} in {entries} entries")
    if "turn" in columns and columns["turn"].dtype != np.dtype("<i4"):
        raise RecordsError(f"{path}: column turn must be I32 of one dimension")
    for name in (*PER_TOKEN, "weight_version", *({"turn"} & columns.keys())):
        if len(columns[name]) != num_tokens:
            raise RecordsError(f"{path}: column {name}: expected {num_tokens} elements, found {len(columns[name])}")


def header_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The header that a file of format 3 would have."""
    server, trainer = (manifest.get("servers") or [{}])[0], manifest.get("trainer", {})
    sampling = {name: value for name, value in manifest.get("sampling", {}).items()
                if name in ("temperature", "top_k", "top_p", "min_p") and value is not None}
    origin = {name: {"from": column, "transform": "none", "digits": "float32"} for column, name in PER_TOKEN.items()}
    return {"tandem_capture": FORMAT, "model": manifest["model"]["path"], "created_at": manifest["created_at"],
            "created_by": f"tandem {manifest['tandem_version']}",
            "behaviour": {"engine": "tandem", **({"dtype": server["dtype"]} if server.get("dtype") else {}),
                          "logprobs": "processed", **sampling},
            "proximal": {"engine": "tandem", **({"dtype": trainer["dtype"]} if trainer.get("dtype") else {}),
                         "policy": "proximal", "temperature": sampling.get("temperature", 1.0)},
            "columns": origin}


def read_capture(path: Path) -> Records:
    """A capture directory as Records: one row a completion, its prompt first. A masked completion is not drawn, nor is
    what was given to the model between two turns."""
    path = pathlib.Path(path)
    manifest = read_manifest(path)
    check_digest(path / "tensors.safetensors", manifest)
    columns = read_safetensors(path / "tensors.safetensors")
    check_columns(path / "tensors.safetensors", columns)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("ids", "drawn", *PER_TOKEN.values())}
    facts, offsets = [], [0]
    for completion, group in enumerate(columns["group"]):
        tokens = slice(*columns["token_offsets"][completion:completion + 2])
        prompt = columns["prompt_ids"][slice(*columns["prompt_offsets"][group:group + 2])]
        is_kept = not columns["masked"][completion]
        drawn = columns["turn"][tokens] != 0 if "turn" in columns else np.full(tokens.stop - tokens.start, True)
        parts["ids"] += [prompt, columns["token_ids"][tokens]]
        parts["drawn"] += [np.zeros(len(prompt), bool), drawn & is_kept]
        for source, name in PER_TOKEN.items():
            parts[name] += [np.full(len(prompt), np.nan, np.float32), columns[source][tokens]]
        offsets.append(offsets[-1] + len(prompt) + len(drawn))
        spans = tuple((int(version), len(list(same))) for version, same in groupby(columns["weight_version"][tokens][drawn]))
        facts.append(RowFacts(
            group_id=str(columns["group_id"][group]), reward=float(columns["reward"][completion]), step=manifest["step"],
            finish_reason=FINISH.get(int(columns["finish"][completion])), spans=spans if is_kept else (),
            proximal_version=manifest["proximal_version"]))
    joined = {name: np.concatenate([np.empty(0, np.float32), *values]) for name, values in parts.items()
              if name in PER_TOKEN.values()}
    return Records(
        path=str(path), header=header_of(manifest), rows=tuple(facts), offsets=np.array(offsets, np.int64),
        token_ids=np.concatenate([np.empty(0, np.int32), *parts["ids"]]),
        drawn=np.concatenate([np.empty(0, bool), *parts["drawn"]]),
        columns={name: values for name, values in joined.items() if not np.isnan(values).all()},
        num_given={name: int(np.count_nonzero(~np.isnan(values))) for name, values in joined.items()
                   if not np.isnan(values).all()})
