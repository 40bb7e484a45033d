"""Token ids as arrays, and their hash on the wire."""
from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import invalid

Int32Array: TypeAlias = npt.NDArray[np.int32]
TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

try:
    _xxhash: Any = importlib.import_module("xxhash")
except ImportError:
    _xxhash = None


def as_ids(ids: TokenIds, name: str) -> Int32Array:
    """[T] int32. Raises InvalidRequest, with `name`, for what is not a row of integers in the range of int32."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise invalid(f"{name} has shape {list(array.shape)} and dtype {array.dtype}: want a row of integers")
    if array.size and (array.min() < -2**31 or array.max() >= 2**31):
        raise invalid(f"{name} has an id outside the range of int32")
    return array.astype(np.int32)


def hash_of(ids: Int32Array) -> int:
    """XXH3-64 of the ids as little-endian int32; 0, which the wire takes for "not checked", without the package xxhash."""
    return 0 if _xxhash is None else int(_xxhash.xxh3_64_intdigest(ids.astype("<i4").tobytes()))
