"""Traces in OpenTelemetry's words; imported only when tracing is on, see `sgld.observe.tracing`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as OpenTelemetryTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sgld.messages import Event
from sgld.observe.tracing import RequestTrace

PATH: Final = "/v1/traces"
EXPORT_SECONDS: Final = 5.0
"""How long one export may take; the peer is usually on the same machine or network."""
CLOSE_SECONDS: Final = 5.0
LONGEST: Final = 256
"""Characters of a text attribute; a collector is no place for prompts."""


class SpanTracer:
    """Makes spans with a provider of its own, so that an embedding program's stays untouched.

    Args:
        endpoint: OTLP/HTTP address; empty: the OTEL_EXPORTER_OTLP_* variables decide.
        service_name: `service.name` of the resource.
        exporter: used in place of OTLP.
    """

    def __init__(self, endpoint: str, service_name: str, exporter: SpanExporter | None) -> None:
        if exporter is None:
            exporter = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=EXPORT_SECONDS)
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sgld")

    def request(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> RequestTrace:
        """Begin a server span, as a child of the caller's if its headers name one."""
        lower = {key.lower(): value for key, value in headers.items()}
        parent = TraceContextTextMapPropagator().extract(lower, Context())
        span = self._tracer.start_span(
            name, context=parent, kind=SpanKind.SERVER, attributes=_attributes(attributes)
        )
        return SpanTrace(self._tracer, span)

    def close(self) -> None:
        """Send what is left, but do not wait for a collector that is away."""
        # The exporter tries again for a while before it gives up; nobody should wait for that.
        last = threading.Thread(target=self._provider.shutdown, name="sgld-spans", daemon=True)
        last.start()
        last.join(CLOSE_SECONDS)


class SpanTrace(RequestTrace):
    """A request's span and its children: `queue`, and one per stage of each output."""

    def __init__(self, tracer: OpenTelemetryTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span, Context())
        self._accepted = time.time_ns()
        self._began: dict[int, int] = {}
        self._started = 0
        self._stepped = False
        self._steps = 0
        self.trace_id = format(span.get_span_context().trace_id, "032x")

    @property
    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, self._context)
        return carrier

    def event(self, event: Event) -> None:
        now = int(event.at * 1e9) or time.time_ns()
        if event.kind == "queued" and self._started:
            # The engine was lost and the request starts over.
            self._span.add_event("requeued")
            self._accepted, self._started, self._began = now, 0, {}
        elif event.kind == "started":
            self._started = now
            self._child("queue", self._accepted, now, {})
        elif event.kind == "step":
            self._steps += 1
            if not self._stepped:
                self._stepped = True
                self._span.add_event("first step")
        elif event.kind == "stage":
            self._stage(event, now)

    def set(self, **attributes: Any) -> None:
        self._span.set_attributes(_attributes({f"sgld.{k}": v for k, v in attributes.items()}))

    def finish(self, status: str, code: str = "", **attributes: Any) -> None:
        if not self._span.is_recording():
            return
        self.set(status=status, steps=self._steps, **attributes)
        if code:
            self._span.set_attribute("error.type", code)
        if status == "failed":
            self._span.set_status(Status(StatusCode.ERROR, code))
        elif status == "completed":
            self._span.set_status(Status(StatusCode.OK))
        self._span.end()

    def _stage(self, event: Event, now: int) -> None:
        # A stage lasts from the end of the one before it, other requests' turns included; the
        # device's own time is an attribute. Events that arrive late in one bunch must not make a
        # stage shorter than its device time.
        start = self._began.get(event.index, self._started or self._accepted)
        start = min(start, now - int(event.seconds * 1e9))
        self._began[event.index] = now
        facts = {"sgld.output": event.index, "sgld.device_seconds": event.seconds}
        self._child(event.stage, start, now, facts)

    def _child(self, name: str, start: int, end: int, attributes: dict[str, Any]) -> None:
        span = self._tracer.start_span(
            name, context=self._context, start_time=start, attributes=attributes
        )
        span.end(end)


def traces_url(endpoint: str) -> str | None:
    """The address that traces are posted to, or None to let the environment say."""
    if not endpoint:
        return None
    if "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + PATH


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: _attribute(value) for name, value in values.items()}
    return {name: value for name, value in made.items() if value is not None}


def _attribute(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [str(item)[:LONGEST] for item in value]
    return str(value)[:LONGEST]
