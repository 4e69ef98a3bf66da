"""What the server counts, in the words of Prometheus; docs/observability.md is made from here.

`Metrics` owns its registry, so that two servers in one process never share a number. `METRICS` is
the list of everything it shows; `Meter` feeds it from the events of one request:

    metrics = Metrics()
    meter = Meter(metrics, "video")          # when the request is accepted
    meter.event(event)                       # for every event of the engine
    metrics.request_finished("video", "completed", "", seconds)
    body, content_type = metrics.render(accept_header)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sgld.messages import Event
from sgld.observe.declared import HTTP_BUCKETS, REQUEST_BUCKETS, STAGE_BUCKETS, Declared
from sgld.observe.session_metrics import SESSION_METRICS, SessionMetrics

ENGINE_STATES: Final = ("starting", "loading", "ready", "restarting", "failed", "stopped")
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MOST_VALUES: Final = 100
"""Different values that one label may take; what comes after them counts as `other`."""

QUEUE: Final = Declared("sgld_queue_length", "gauge", "Requests that wait for a place.")
RUNNING: Final = Declared("sgld_requests_running", "gauge", "Requests that the engine works on.")
RECEIVED: Final = Declared(
    "sgld_requests_received_total", "counter", "Generation requests accepted.", ("kind",)
)
REQUESTS: Final = Declared(
    "sgld_requests_total",
    "counter",
    "Generation requests ended; `code` is empty unless they failed or were cancelled.",
    ("kind", "status", "code"),
)
FAILURES: Final = Declared(
    "sgld_failures_total", "counter", "Generation requests failed, by error code.", ("kind", "code")
)
CANCELLATIONS: Final = Declared(
    "sgld_cancellations_total", "counter", "Generation requests cancelled.", ("kind", "reason")
)
REQUEST_SECONDS: Final = Declared(
    "sgld_request_duration_seconds",
    "histogram",
    "From acceptance to the end of a generation request.",
    ("kind", "status"),
    REQUEST_BUCKETS,
)
QUEUE_SECONDS: Final = Declared(
    "sgld_request_queue_seconds",
    "histogram",
    "From acceptance to the engine's start on a request.",
    ("kind",),
    REQUEST_BUCKETS,
)
FIRST_STEP_SECONDS: Final = Declared(
    "sgld_request_first_step_seconds",
    "histogram",
    "From acceptance to the end of a request's first denoising step.",
    ("kind",),
    REQUEST_BUCKETS,
)
STAGE_SECONDS: Final = Declared(
    "sgld_stage_duration_seconds",
    "histogram",
    "Device time of one stage of one output; a shared forward counts in equal parts.",
    ("stage",),
    STAGE_BUCKETS,
)
STEPS: Final = Declared("sgld_steps_total", "counter", "Denoising steps done.", ("kind",))
SENT: Final = Declared("sgld_sent_bytes_total", "counter", "Bytes of results sent to clients.")
STORED: Final = Declared("sgld_outputs_stored_bytes", "gauge", "Bytes of results kept now.")
UPLOADED: Final = Declared("sgld_uploaded_bytes_total", "counter", "Bytes of input media received.")
MEMORY_USED: Final = Declared(
    "sgld_device_memory_used_bytes", "gauge", "Device memory that the engine holds."
)
MEMORY_TOTAL: Final = Declared(
    "sgld_device_memory_total_bytes", "gauge", "Device memory there is in all."
)
ENGINE: Final = Declared(
    "sgld_engine_state", "gauge", "1 for the state the engine is in, 0 for the others.", ("state",)
)
RESTARTS: Final = Declared(
    "sgld_engine_restarts_total", "counter", "Times the engine died and was started again."
)
HTTP: Final = Declared(
    "sgld_http_requests_total",
    "counter",
    "HTTP requests answered; `route` is the path's pattern, `unmatched` if there is none.",
    ("method", "route", "status"),
)
HTTP_SECONDS: Final = Declared(
    "sgld_http_request_duration_seconds",
    "histogram",
    "From an HTTP request to the end of its answer.",
    ("method", "route"),
    HTTP_BUCKETS,
)
STREAMS: Final = Declared("sgld_event_streams_open", "gauge", "Clients that follow a job's events.")
INFO: Final = Declared(
    "sgld_build_info", "gauge", "Always 1; says what is served.", ("version", "model", "pipeline")
)

METRICS: Final = (
    QUEUE, RUNNING, RECEIVED, REQUESTS, FAILURES, CANCELLATIONS, REQUEST_SECONDS, QUEUE_SECONDS,
    FIRST_STEP_SECONDS, STAGE_SECONDS, STEPS, SENT, STORED, UPLOADED, MEMORY_USED, MEMORY_TOTAL,
    ENGINE, RESTARTS, HTTP, HTTP_SECONDS, STREAMS, *SESSION_METRICS, INFO,
)  # fmt: skip
"""Every metric of sgld's own; those of the process come from prometheus-client."""


class EngineView(Protocol):
    """What is read of the engine's state."""

    @property
    def status(self) -> str: ...
    @property
    def restarts(self) -> int: ...
    @property
    def device_memory(self) -> Mapping[str, int] | None: ...


class Exposition(NamedTuple):
    """A scrape's answer."""

    body: bytes
    content_type: str


class Metrics(SessionMetrics):
    """The counters of one server; every method may be called from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = CollectorRegistry(auto_describe=True)
        self._made: dict[str, Any] = {row.name: _make(row, self.registry) for row in METRICS}
        self._values: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._restarts = 0
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        for row in METRICS:
            # A counter that is absent until its first event hides that event from `rate()`.
            if row.labels == ("kind",) and row.type == "counter":
                for kind in ("image", "video"):
                    self._made[row.name].labels(kind)
        self._state("starting")

    def served(self, version: str, model: str, pipeline: str) -> None:
        """Say which model this server serves."""
        self._of(INFO, version, model, pipeline).set(1)

    def request_started(self, kind: str) -> None:
        """A generation request was accepted; `kind` is `image` or `video`."""
        self._of(RECEIVED, kind).inc()

    def request_finished(self, kind: str, status: str, code: str, seconds: float) -> None:
        """A request ended as `completed`, `failed` or `cancelled` after `seconds`."""
        self._of(REQUESTS, kind, status, code).inc()
        self._of(REQUEST_SECONDS, kind, status).observe(seconds)
        if status == "failed":
            self._of(FAILURES, kind, code or "internal_error").inc()

    def queue_waited(self, kind: str, seconds: float) -> None:
        """The engine began with a request after it waited for `seconds`."""
        self._of(QUEUE_SECONDS, kind).observe(seconds)

    def first_step(self, kind: str, seconds: float) -> None:
        """A request's first step ended, `seconds` after the request was accepted."""
        self._of(FIRST_STEP_SECONDS, kind).observe(seconds)

    def queue(self, length: int) -> None:
        """So many requests wait now."""
        self._of(QUEUE).set(length)

    def running(self, number: int) -> None:
        """So many requests are with the engine now."""
        self._of(RUNNING).set(number)

    def stage(self, name: str, seconds: float) -> None:
        """A stage of one output took `seconds`."""
        self._of(STAGE_SECONDS, name).observe(max(seconds, 0.0))

    def step(self, kind: str) -> None:
        """One denoising step was done."""
        self._of(STEPS, kind).inc()

    def cancelled(self, kind: str, reason: str = "request") -> None:
        """A request was cancelled because of `request`, `disconnect`, `deleted` or `shutdown`."""
        self._of(CANCELLATIONS, kind, reason).inc()

    def bytes_out(self, number: int) -> None:
        """So many bytes of a result went to a client."""
        self._of(SENT).inc(number)

    def bytes_stored(self, number: int) -> None:
        """Results take so many bytes now."""
        self._of(STORED).set(number)

    def bytes_uploaded(self, number: int) -> None:
        """So many bytes of input media came in."""
        self._of(UPLOADED).inc(number)

    def engine_state(self, state: EngineView) -> None:
        """Take over the engine's state, its restarts and its device's memory.

        `state.device_memory` has `total` and `used`, or `free` in place of `used`.
        """
        self._state(state.status)
        with self._lock:
            more, self._restarts = state.restarts - self._restarts, state.restarts
        if more > 0:
            self._of(RESTARTS).inc(more)
        memory = state.device_memory or {}
        total = memory.get("total", 0)
        used = memory.get("used", total - memory["free"] if "free" in memory else 0)
        self._of(MEMORY_TOTAL).set(total)
        self._of(MEMORY_USED).set(used)

    def http(self, method: str, route: str, status: int, seconds: float) -> None:
        """An HTTP request was answered; `route` is the pattern it matched, empty if none."""
        method = method if method in METHODS else "other"
        route = route or "unmatched"
        self._of(HTTP, method, route, str(status)).inc()
        self._of(HTTP_SECONDS, method, route).observe(seconds)

    def streams(self, change: int) -> None:
        """An event stream was opened (1) or closed (-1)."""
        self._of(STREAMS).inc(change)

    def render(self, accept: str = "") -> Exposition:
        """Everything as text, in the format that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return Exposition(encode(_Shown(self.registry)), content_type)

    def _state(self, status: str) -> None:
        for name in ENGINE_STATES:
            self._of(ENGINE, name).set(float(name == status))

    def _of(self, row: Declared, *values: str) -> Any:
        metric = self._made[row.name]
        if not row.labels:
            return metric
        pairs = zip(row.labels, values, strict=True)
        return metric.labels(*[self._bounded(label, value) for label, value in pairs])

    def _bounded(self, label: str, value: str) -> str:
        # Codes and stages come from plugins too: whatever they send, the number of series is bound.
        with self._lock:
            known = self._values.setdefault(label, set())
            if value in known:
                return value
            if len(known) < MOST_VALUES:
                known.add(value)
                return value
        return "other"


@dataclass(slots=True)
class Meter:
    """Counts what the engine says about one request, from the moment of its acceptance."""

    metrics: Metrics
    kind: str
    clock: Callable[[], float] = time.monotonic
    _accepted: float = -1.0
    _began: bool = False
    _stepped: bool = False

    def __post_init__(self) -> None:
        self._accepted = self.clock()

    def event(self, event: Event) -> None:
        """Count one event; a request that starts anew after an engine was lost waits only once."""
        if event.kind == "started" and not self._began:
            self._began = True
            self.metrics.queue_waited(self.kind, self.clock() - self._accepted)
        elif event.kind == "stage":
            self.metrics.stage(event.stage, event.seconds)
        elif event.kind == "step":
            self.metrics.step(self.kind)
            if not self._stepped:
                self._stepped = True
                self.metrics.first_step(self.kind, self.clock() - self._accepted)


class _Shown(Collector):
    """A registry without the creation time of every series, which nobody asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


def _make(row: Declared, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if row.type == "counter":
        return Counter(row.name, row.help, row.labels, registry=registry)
    if row.type == "gauge":
        return Gauge(row.name, row.help, row.labels, registry=registry)
    return Histogram(row.name, row.help, row.labels, buckets=row.buckets, registry=registry)
