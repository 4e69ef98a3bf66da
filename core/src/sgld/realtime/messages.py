"""What crosses the executor's boundary for a session: plain data only.

A session's reports come in one stream with the events of ordinary requests; whoever sorts it tells
them apart by type and reads `session_id`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

CommandKind = Literal[
    "open", "event", "step", "pause", "resume", "reset", "rewind", "fork", "snapshot", "taken",
    "close",
]  # fmt: skip
ReportKind = Literal["opened", "answer", "chunk", "closed"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session runs.

    Args:
        max_chunks: ends by itself after so many; 0: endless.
        queue_chunks: finished chunks that may wait for the reader (`taken`); then generation rests.
        on_full: `block` generation while the queue is full, or `drop`: generate on, keep the newest
            chunk until the reader has room, and leave out those between.
        rewind_chunks: how many chunks `rewind` can take back.
        ahead: of these, how many the user did not ask for: chunks that wait to be seen. A refusal
            tells numbers without them.
        free_running: generate on; False: only on `step`.
    """

    max_chunks: int = 0
    queue_chunks: int = 2
    on_full: Literal["block", "drop"] = "block"
    rewind_chunks: int = 0
    ahead: int = 0
    free_running: bool = True


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a session starts from.

    Args:
        id: unique among the engine's live sessions.
        adapter: id of the realtime adapter.
        params: the family's parameters as JSON values, complete.
        seed: of the noise of every chunk.
        images: the first frame, RGB uint8 [H, W, 3], or nothing.
        events: control events that hold from chunk 0 on: `(kind, control, event id)`.
        snapshot: continue from these bytes, which the same model wrote. Parameters and seed must be
            those of the snapshot; without `images` its own are used; `events` follow its controls.
    """

    id: str
    adapter: str
    params: Mapping[str, Any]
    seed: int
    images: tuple[npt.NDArray[np.uint8], ...] = ()
    events: tuple[tuple[str, Mapping[str, Any], int | None], ...] = ()
    options: SessionOptions = SessionOptions()
    snapshot: bytes = b""


@dataclass(frozen=True, slots=True)
class SessionCommand:
    """A wish about a session. Commands of a session take effect in the order they were given;
    `reset`, `rewind`, `fork` and `snapshot` wait for a chunk boundary, and what follows them waits
    with them; `close` and `taken` never wait.

    Each is answered by one report that carries its `number`, but for `taken`, and `event` with
    number 0. Repeating a command (same number, not 0) that has taken effect changes nothing and is
    answered the same way; a repeated `snapshot` is taken anew, since it changes nothing either.

    `values`: open {request: SessionRequest} · event {kind, control, event_id} · rewind {chunks} or
    {to: index of the chunk that is to be made next} · fork {id} · taken {chunk: index of the newest
    chunk that the reader is done with}.

    A rewind takes the controls back as well: what was sent since is forgotten, and a chunk that is
    made again without new controls is the same to the bit. A chunk that is being made is given up,
    and does not count among `chunks`.
    """

    session_id: str
    kind: CommandKind
    number: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionReport:
    """What happened to a session.

    Args:
        kind: `opened` and `answer` reply to the command `number` (with `code` set they refuse it);
            `chunk` carries frames; `closed` is the last one, exactly one for every session that
            was opened. A fork is `opened` under its own id before the `fork` is answered.
        chunk: index of the chunk; after a `rewind` indices go back.
        frames: RGB uint8 [F, H, W, 3].
        event_id: of the newest event that this chunk has seen.
        values:
            opened: `width`, `height`, `fps`, `chunk_latents` (latent frames of an ordinary chunk),
            `first_frames` and `chunk_frames` (frames of chunk 0 and of the others), `chunk` (the
            one that comes next), `bytes` (reserved on the device), `undo_bytes` (reserved of host
            memory for `rewind`), `live` (sessions);
            answer: `chunk`, the index of the chunk that comes next (`event`: the first one that
            can see it, `step`: the one it makes, `rewind`: the one it went back to); `snapshot`:
            `snapshot` (bytes); `fork`: `id`;
            chunk: `seconds` {prepare, denoise, decode, commit: of the chunk before}, `bytes` (held
            on the device), `dropped` (chunks left out since the last one);
            closed: `reason`: `closed`, `complete` (max_chunks), or `failed` with a code;
            a refusal: what is known of `field`, `retry_after` (seconds), `live`, `needed`, `free`
            (bytes), `fits` (the largest `rewind_chunks` that there is room for).
        code: why it was refused, or ended; empty: all is well, or the client asked for the end.
        message: the same in a sentence.
    """

    session_id: str
    kind: ReportKind
    number: int = 0
    chunk: int = 0
    frames: npt.NDArray[np.uint8] | None = None
    event_id: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    message: str = ""


Codes = Literal[
    "busy", "session_not_found", "session_complete", "session_exists", "invalid_parameter",
    "invalid_command", "invalid_event", "snapshot_mismatch", "snapshot_damaged", "engine_lost",
    "cancelled",
    "non_finite_output", "out_of_memory", "rewind_too_large", "stage_failed", "unsupported_feature",
    "internal_error",
]  # fmt: skip
"""Codes of refusals and ends that the engine itself gives; stages may bring their own."""
