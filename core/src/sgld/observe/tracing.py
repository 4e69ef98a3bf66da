"""Traces: one span per request with a child for each stage, sent to an OpenTelemetry collector.

    tracing = Tracing.create(enabled=True, endpoint="http://collector:4318")
    trace = tracing.request("POST /v1/videos", headers, {"sgld.kind": "video", ...})
    trace.event(event)                 # for every event of the engine
    response.headers.update(trace.headers)
    trace.finish("completed", seconds=..., ...)
    tracing.close()

Without `enabled` nothing of OpenTelemetry is imported and every call does nothing. The package is
an extra: `pip install sgld-core[otel]`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from sgld.api.errors import UserError
from sgld.messages import Event

IMPLEMENTATION = "sgld.observe.spans"


class RequestTrace:
    """The trace of one request; this one records nothing."""

    trace_id: str = ""
    """32 hexadecimal digits, to be bound to log lines; empty when nothing is recorded."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers that tell the next one, or the caller, which trace this is: `traceparent`."""
        return {}

    def event(self, event: Event) -> None:
        """Take in what the engine says: waiting, stages and the first step become visible."""

    def set(self, **attributes: Any) -> None:
        """Add facts to the request's span, as `sgld.NAME`."""

    def finish(self, status: str, code: str = "", **attributes: Any) -> None:
        """End the span: `completed`, `failed` with a code, or `cancelled`. Safe to call again."""


class Tracer(Protocol):
    """What makes traces when tracing is on."""

    def request(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> RequestTrace: ...

    def close(self) -> None: ...


class Tracing:
    """Makes a trace for each request, or does nothing."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    @classmethod
    def create(
        cls,
        enabled: bool = False,
        endpoint: str = "",
        service_name: str = "sgld",
        *,
        exporter: Any = None,
    ) -> Tracing:
        """Tracing as asked for.

        Args:
            enabled: whether to trace at all.
            endpoint: the collector's OTLP/HTTP address; `/v1/traces` is added to an address without
                a path. Empty: what OTEL_EXPORTER_OTLP_ENDPOINT says, else http://localhost:4318.
            service_name: the name that the traces are found under.
            exporter: a span exporter to use in place of OTLP.

        Raises:
            UserError: tracing was asked for and the extra is not installed.
        """
        if not enabled:
            return cls()
        try:
            spans = importlib.import_module(IMPLEMENTATION)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            raise UserError(
                f"tracing needs OpenTelemetry, and {error.name} is not installed.",
                remedy="Run: pip install sgld-core[otel]",
                code="missing_extra",
            ) from error
        return cls(spans.SpanTracer(endpoint, service_name, exporter))

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._tracer is not None

    def request(
        self,
        name: str,
        headers: Mapping[str, str] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> RequestTrace:
        """Begin the trace of a request.

        Args:
            name: what was asked, such as `POST /v1/videos`; never a path with ids in it.
            headers: the caller's; `traceparent` and `tracestate` continue the caller's trace.
            attributes: facts known now, with their full names.
        """
        if self._tracer is None:
            return RequestTrace()
        return self._tracer.request(name, headers or {}, attributes or {})

    def close(self) -> None:
        """Send what is left, waiting a few seconds at most, and stop. Safe to call again."""
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.close()
