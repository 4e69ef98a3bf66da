"""Reads safetensors headers: names, shapes and byte ranges, never the data. Torch-free.

The format: 8 bytes little-endian header length, a JSON object name → {dtype, shape, data_offsets},
then the data without holes (https://huggingface.co/docs/safetensors, "Format"). We read it here
rather than through the library to tell apart what is wrong with a damaged file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeGuard

MAX_HEADER: Final = 100_000_000
"""The limit of the format's reference implementation; beyond it the length is garbage."""

BITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64,
        "I64": 64, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8,
        "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6,
        "F6_E3M2": 6,
    }
)  # fmt: skip
"""Bits per element of each safetensors dtype."""

FLOATING: Final = frozenset({"F16", "BF16", "F32", "F64"})
"""Stored types that a change of precision applies to; smaller floats are quantised weights."""


class Tensor(NamedTuple):
    """One stored tensor: `start` and `end` are byte offsets in `file`, both -1 in a pickle."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes as stored."""
        return self.elements * BITS[self.dtype] // 8

    @property
    def floating(self) -> bool:
        """Whether a change of precision applies to it."""
        return self.dtype in FLOATING


class Header(NamedTuple):
    """Content of one file's header."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


class BrokenFile(Exception):
    """The file is not a whole safetensors file; the message names the file and the fault."""


def read_header(path: Path) -> Header:
    """Parse the header of `path` and check it against the file's size.

    Raises:
        BrokenFile: missing, truncated, or not safetensors.
    """
    if os.path.islink(path) and not os.path.exists(path):
        raise BrokenFile(f"{path} is a broken link to {os.readlink(path)}")
    try:
        size = os.path.getsize(path)
        with path.open("rb") as file:
            raw, length = _raw_header(path, file.read(8), size, file)
    except OSError as error:
        raise BrokenFile(f"{path} cannot be read ({error.strerror or error})") from None
    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise BrokenFile(f"{path} has a damaged header ({error})") from None
    if not isinstance(content, dict):
        raise BrokenFile(f"{path} has a damaged header (not a JSON object)")
    metadata = content.pop("__metadata__", None) or {}
    begin = 8 + length
    tensors = {name: _tensor(path, name, entry, begin) for name, entry in content.items()}
    _check_layout(path, tensors, begin, size)
    return Header(tensors, metadata if isinstance(metadata, dict) else {})


def _raw_header(path: Path, prefix: bytes, size: int, file: Any) -> tuple[bytes, int]:
    if len(prefix) < 8:
        raise BrokenFile(f"{path} is truncated: {size} bytes are too few for a header")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        raise BrokenFile(f"{path} is not a safetensors file: its header would be {length} bytes")
    if length > size - 8:
        raise BrokenFile(f"{path} is truncated: {size} bytes, the header alone needs {length + 8}")
    return file.read(length), length


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{double!r} occurs twice")
    return found


def _tensor(path: Path, name: str, entry: Any, begin: int) -> Tensor:
    def broken(why: str) -> BrokenFile:
        return BrokenFile(f"{path} has a damaged header (tensor {name!r}: {why})")

    if not isinstance(entry, dict):
        raise broken("no description")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise broken(f"unknown dtype {dtype!r}")
    if not _naturals(shape):
        raise broken(f"shape {shape!r}")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise broken(f"data_offsets {offsets!r}")
    tensor = Tensor(name, path, dtype, tuple(shape), begin + offsets[0], begin + offsets[1])
    needed = -(-tensor.elements * BITS[dtype] // 8)
    if tensor.end - tensor.start != needed:
        raise broken(f"{tensor.end - tensor.start} bytes for {dtype} {list(shape)}")
    return tensor


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, tensors: Mapping[str, Tensor], begin: int, size: int) -> None:
    position = begin
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != position:
            kind = "overlaps the one before it" if tensor.start < position else "leaves a hole"
            raise BrokenFile(f"{path} has a damaged header (tensor {tensor.name!r} {kind})")
        position = tensor.end
    if size < position:
        lost = sum(tensor.end > size for tensor in tensors.values())
        raise BrokenFile(
            f"{path} is truncated: {size} of {position} bytes, {lost} of {len(tensors)} tensors "
            "are cut off"
        )
    if size > position:
        raise BrokenFile(f"{path} has {size - position} bytes after its last tensor")
