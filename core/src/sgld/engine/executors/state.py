"""How a supervised engine is doing, for health answers and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EngineStatus = Literal["starting", "loading", "ready", "restarting", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class EngineState:
    """A snapshot; a change makes a new one.

    Args:
        status: `starting` (the process imports), `loading`, `ready`, `restarting` (waiting to start
            again), `failed` (will not start again), `stopped` (closed).
        reason: why it is failed or restarting, one sentence; empty otherwise.
        pid: the engine's process; None while there is none.
        restarts: processes that were started after the first.
        loading: component → bytes loaded and bytes in all, of the current start.
        device_memory: `total`, `free`, `allocated` and `peak` bytes as last reported.
        capabilities: what the engine told when it got ready: `device`, `dtypes`, `pipeline`,
            `max_running`, `batching`.
    """

    status: EngineStatus = "starting"
    reason: str = ""
    pid: int | None = None
    restarts: int = 0
    loading: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    device_memory: Mapping[str, int] | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)
