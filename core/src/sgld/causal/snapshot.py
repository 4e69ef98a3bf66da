"""Causal state as bytes: a short frame with a checksum around safetensors, never pickle.

8 bytes   magic
4 bytes   version, little endian
32 bytes  BLAKE2b of all that follows
the rest  safetensors; its metadata holds one JSON text
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sgld.causal.errors import SnapshotError

MAGIC: Final = b"sgldcs\r\n"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sI32s")
REMEDY: Final = "Take a new snapshot with this version."


def pack(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """JSON values and named tensors as bytes. The tensors are copied to the host first."""
    text = json.dumps(values, allow_nan=False, sort_keys=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    body = save(plain, metadata={"state": text})
    return HEAD.pack(MAGIC, VERSION, _digest(body)) + body


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `pack` wrote.

    Raises `SnapshotError`: `snapshot_damaged` for bytes that `pack` did not write as they are,
    `snapshot_version` for those of another version.
    """
    if len(data) < HEAD.size:
        raise SnapshotError(f"{len(data)} bytes are no snapshot.")
    magic, version, digest = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotError("these bytes are no snapshot.")
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot is of version {version}; this one reads {VERSION}.",
            code="snapshot_version",
            remedy=REMEDY,
        )
    body = data[HEAD.size :]
    if _digest(body) != digest:
        raise SnapshotError("the snapshot is damaged: its checksum differs.")
    try:
        tensors = load(body)
        (length,) = struct.unpack_from("<Q", body)
        header = json.loads(body[8 : 8 + length])
        values = json.loads(header["__metadata__"]["state"])
        if not isinstance(values, dict):
            raise TypeError("the state is no mapping")
    except (SafetensorError, KeyError, TypeError, ValueError, struct.error) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}.") from error
    return values, tensors


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()
