"""One measurement from beginning to end, on a server that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from sgld.bench import report
from sgld.bench.client import WorldClient, connected
from sgld.bench.machine import Memory
from sgld.bench.model_facts import Place, device_memory, init_of, served_model
from sgld.bench.options import BenchOptions
from sgld.bench.realtime import Said, Wishes, free_running, stepping

ReadMemory = Callable[[], Mapping[str, Memory]]


def measure(
    place: Place,
    options: BenchOptions,
    init: Mapping[str, Any],
    said: Said,
    *,
    key: str = "",
    read_memory: ReadMemory = dict,
) -> dict[str, Any]:
    """Measure the server at `place`; the report without the machine's facts.

    Args:
        place: where it listens.
        options: what is measured.
        init: fields of the sessions' init message that the user gave.
        said: told of progress.
        key: API key; empty: none.
        read_memory: memory of the server's processes now; empty where it cannot be seen.

    Raises SgldError as the server refuses or fails.
    """
    model = served_model(place, key)
    opening = init_of(model, {**init, "realtime_output_format": options.format})
    wishes = Wishes(options.sessions, options.warm_chunks, options.chunks, options.step_chunks)
    idle = report.memory(read_memory())
    busy: dict[str, Any] = {}

    def open_client() -> AbstractContextManager[WorldClient]:
        return connected(place.ws, key=key, patience=options.patience, proxy=place.far)

    def at_work() -> None:
        busy["processes"] = report.memory(read_memory())
        busy["device"] = device_memory(place, key)

    runs = free_running(open_client, opening, wishes, said, at_work)
    step = stepping(open_client, opening, wishes, said) if wishes.steps else None
    shown = {name: value for name, value in opening.items() if not isinstance(value, bytes)}
    return {
        "model": {name: model[name] for name in ("id", "pipeline", "plugin")},
        "settings": {
            "format": options.format,
            "sessions": options.sessions,
            "warm_chunks": options.warm_chunks,
            "init": shown,
        },
        "session": report.session(runs[0]),
        "free_running": report.throughput(runs),
        "stepping": None if step is None else report.stepped(step),
        "memory": {"idle": idle, "busy": busy["processes"], "device": busy["device"]},
    }
