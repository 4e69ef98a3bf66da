"""A session as bytes: its state, its controls, its first frame, and what it must agree with.

Layout: magic, length of the header, SHA-256 of all that follows; then the header as JSON, the
pictures, and the state as `sgld.causal.state` wrote it. Nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sgld.engine.sessions.budget import Refusal

HEAD: Final = struct.Struct(">8sI32s")
MAGIC: Final = b"sgldses1"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot holds.

    Args:
        identity: word → value that the engine which continues must share: model, pipeline, ...
        params: parameters of the session, and `seed` its seed.
        adapter: id of the adapter, `controls` what it wrote down.
        event_id: of the newest event that a chunk has seen.
        next_index: the chunk that comes next.
        images: the first frame, or nothing.
        state: bytes of the causal state.
    """

    identity: Mapping[str, str]
    params: Mapping[str, Any]
    seed: int
    adapter: str
    controls: Mapping[str, Any]
    event_id: int | None
    next_index: int
    images: tuple[npt.NDArray[np.uint8], ...]
    state: bytes

    def to_bytes(self) -> bytes:
        """Everything as bytes."""
        header = {
            "identity": dict(self.identity),
            "params": dict(self.params),
            "seed": self.seed,
            "adapter": self.adapter,
            "controls": dict(self.controls),
            "event_id": self.event_id,
            "next_index": self.next_index,
            "images": [list(image.shape) for image in self.images],
        }
        text = json.dumps(header).encode()
        body = [text, *(image.tobytes() for image in self.images), self.state]
        digest = hashlib.sha256()
        for piece in body:
            digest.update(piece)
        return b"".join([HEAD.pack(MAGIC, len(text), digest.digest()), *body])

    @classmethod
    def read(cls, data: bytes) -> Snapshot:
        """Raises Refusal (`snapshot_damaged`) for bytes that `to_bytes` did not write."""
        view = memoryview(data)
        try:
            magic, length, digest = HEAD.unpack(view[: HEAD.size])
        except struct.error:
            raise _damaged("they are too short") from None
        body = view[HEAD.size :]
        if magic != MAGIC:
            raise _damaged("they do not begin like one")
        if hashlib.sha256(body).digest() != digest:
            raise _damaged("their checksum is wrong")
        try:
            return cls._parse(json.loads(bytes(body[:length])), body[length:])
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _parse(cls, header: Any, rest: memoryview) -> Snapshot:
        images: list[npt.NDArray[np.uint8]] = []
        for shape in header.pop("images"):
            size = int(np.prod(shape))
            images.append(np.frombuffer(rest[:size], np.uint8).reshape(shape).copy())
            rest = rest[size:]
        return cls(**header, images=tuple(images), state=bytes(rest))

    def check(self, identity: Mapping[str, str], params: Mapping[str, Any], seed: int) -> None:
        """Raises Refusal (`snapshot_mismatch`) naming all that differs from what continues it."""
        here: dict[str, Any] = {
            **identity,
            **{f"params.{name}": value for name, value in params.items()},
        }
        there: dict[str, Any] = {
            **self.identity,
            **{f"params.{k}": value for k, value in self.params.items()},
        }
        # The family's own field for the seed may be empty: what counts is the session's seed.
        here["params.seed"], there["params.seed"] = seed, self.seed
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        if names:
            told = "; ".join(
                f"{name} is {there.get(name)!r} in it and {here.get(name)!r} here"
                for name in sorted(names)
            )
            raise Refusal(
                f"the snapshot does not fit: {told}.",
                code="snapshot_mismatch",
                remedy="Continue it with the model and the parameters that it was taken with.",
                field="snapshot",
            )


def _damaged(why: str) -> Refusal:
    return Refusal(
        f"the bytes are no snapshot of a session: {why}.",
        code="snapshot_damaged",
        remedy="Send the bytes exactly as they were given.",
        field="snapshot",
    )
