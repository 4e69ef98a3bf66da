"""Traces: spans of a request and its stages, the caller's context, and a real collector's end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sgld.messages import Event
from sgld.observe.tracing import RequestTrace, Tracing

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.fixture
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(memory: InMemorySpanExporter) -> Iterator[Tracing]:
    made = Tracing.create(True, exporter=memory)
    yield made
    made.close()


def spans(tracing: Tracing, memory: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    tracing.close()
    finished = memory.get_finished_spans()
    assert len({span.name for span in finished}) == len(finished)
    return {span.name: span for span in finished}


def context(span: ReadableSpan) -> Any:
    return span.get_span_context()


def seconds(span: ReadableSpan) -> float:
    assert span.end_time is not None
    assert span.start_time is not None
    return (span.end_time - span.start_time) / 1e9


def run(trace: RequestTrace) -> None:
    trace.event(Event("queued", "r"))
    time.sleep(0.02)
    trace.event(Event("started", "r"))
    time.sleep(0.05)
    trace.event(Event("stage", "r", stage="text", seconds=0.01))
    trace.event(Event("step", "r", stage="denoise", step=1, total=2))
    trace.event(Event("step", "r", stage="denoise", step=2, total=2))
    trace.event(Event("stage", "r", stage="denoise", seconds=0.5))
    trace.event(Event("done", "r"))


def test_a_span_with_a_child_for_each_stage(tracing: Tracing, memory: InMemorySpanExporter) -> None:
    trace = tracing.request("POST /v1/videos", {}, {"sgld.model": "wan", "sgld.kind": "video"})
    run(trace)
    trace.finish("completed", size="832x480", seeds=[1, 2], missing=None)
    trace.finish("failed")
    found = spans(tracing, memory)
    assert set(found) == {"POST /v1/videos", "queue", "text", "denoise"}
    top = found["POST /v1/videos"]
    assert top.attributes is not None
    assert dict(top.attributes) == {
        "sgld.model": "wan",
        "sgld.kind": "video",
        "sgld.status": "completed",
        "sgld.steps": 2,
        "sgld.size": "832x480",
        "sgld.seeds": ("1", "2"),
    }
    assert top.status.is_ok
    assert top.kind.name == "SERVER"
    assert top.resource.attributes["service.name"] == "sgld"
    assert [event.name for event in top.events] == ["first step"]
    for name in ("queue", "text", "denoise"):
        child = found[name]
        assert child.parent is not None
        assert child.parent.span_id == context(top).span_id
        assert context(child).trace_id == context(top).trace_id
    assert format(context(top).trace_id, "032x") == trace.trace_id
    assert 0.02 <= seconds(found["queue"]) < 5
    # From the start to its event; and never shorter than the device worked.
    assert 0.05 <= seconds(found["text"]) < 5
    assert seconds(found["denoise"]) >= 0.5
    assert found["text"].attributes is not None
    assert found["text"].attributes["sgld.device_seconds"] == 0.01


def test_outputs_have_stages_of_their_own(memory: InMemorySpanExporter) -> None:
    tracing = Tracing.create(True, exporter=memory)
    trace = tracing.request("x")
    trace.event(Event("started", "r"))
    for index in (0, 1):
        trace.event(Event("stage", "r", index=index, stage="decode", seconds=0.0))
    trace.finish("completed")
    tracing.close()
    stages = [span for span in memory.get_finished_spans() if span.name == "decode"]
    assert [(span.attributes or {})["sgld.output"] for span in stages] == [0, 1]


@pytest.mark.parametrize(
    ("status", "code", "state"),
    [("failed", "out_of_memory", "ERROR"), ("cancelled", "cancelled", "UNSET")],
)
def test_how_it_ended(
    tracing: Tracing, memory: InMemorySpanExporter, status: str, code: str, state: str
) -> None:
    tracing.request("x").finish(status, code)
    span = spans(tracing, memory)["x"]
    assert span.status.status_code.name == state
    assert span.attributes is not None
    assert span.attributes["error.type"] == code
    assert span.attributes["sgld.status"] == status


def test_the_callers_trace_goes_on(tracing: Tracing, memory: InMemorySpanExporter) -> None:
    trace = tracing.request("x", {"TraceParent": CALLER, "TraceState": "a=1"})
    assert trace.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert trace.headers["traceparent"].endswith("-01")
    assert trace.headers["tracestate"] == "a=1"
    trace.finish("completed")
    span = spans(tracing, memory)["x"]
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == "b7ad6b7169203331"
    own = format(context(span).span_id, "016x")
    assert trace.headers["traceparent"].split("-")[2] == own


def test_what_the_caller_does_not_sample_is_not_sent(
    tracing: Tracing, memory: InMemorySpanExporter
) -> None:
    trace = tracing.request("x", {"traceparent": UNSAMPLED})
    run(trace)
    trace.finish("completed")
    assert spans(tracing, memory) == {}


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", CALLER + "\r\nx: y", "\x00"])
def test_a_broken_header_begins_a_new_trace(
    tracing: Tracing, memory: InMemorySpanExporter, header: str
) -> None:
    trace = tracing.request("x", {"traceparent": header})
    trace.finish("completed")
    assert spans(tracing, memory)["x"].parent is None
    assert "0af7651916cd43dd" not in trace.headers["traceparent"]


def test_a_lost_engine_shows(tracing: Tracing, memory: InMemorySpanExporter) -> None:
    trace = tracing.request("x")
    trace.event(Event("queued", "r"))
    trace.event(Event("started", "r"))
    trace.event(Event("queued", "r"))
    trace.event(Event("started", "r"))
    trace.finish("completed")
    tracing.close()
    names = [span.name for span in memory.get_finished_spans()]
    assert names == ["queue", "queue", "x"]
    assert [event.name for event in memory.get_finished_spans()[2].events] == ["requeued"]


def test_long_texts_are_cut(tracing: Tracing, memory: InMemorySpanExporter) -> None:
    trace = tracing.request("x")
    trace.set(note="n" * 1000, weird=object)
    trace.finish("completed")
    attributes = spans(tracing, memory)["x"].attributes
    assert attributes is not None
    assert attributes["sgld.note"] == "n" * 256
    assert "object" in str(attributes["sgld.weird"])


def test_off_does_nothing() -> None:
    tracing = Tracing.create(False, "http://nowhere.invalid")
    trace = tracing.request("x", {"traceparent": CALLER})
    run(trace)
    trace.set(a=1)
    trace.finish("completed")
    assert trace.headers == {}
    assert trace.trace_id == ""
    assert not tracing.enabled
    tracing.close()


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'opentelemetry':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from sgld.observe.tracing import Tracing\n"
        "Tracing.create(False).close()\n"
        "try:\n"
        "    Tracing.create(True)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error.code, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UserError missing_extra tracing needs OpenTelemetry")
    assert "pip install sgld-core[otel]" in done.stdout


def test_another_missing_module_is_not_blamed_on_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sgld.observe.tracing.IMPLEMENTATION", "sgld.observe.absent")
    with pytest.raises(ModuleNotFoundError, match="absent"):
        Tracing.create(True)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("", None),
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("collector:4318", "http://collector:4318/v1/traces"),
        ("https://x/otlp/v1/traces", "https://x/otlp/v1/traces"),
    ],
)
def test_where_traces_go(endpoint: str, url: str | None) -> None:
    from sgld.observe.spans import traces_url

    assert traces_url(endpoint) == url


class Collector(HTTPServer):
    """Listens as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, str, bytes]] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


def test_a_collector_receives_protobuf() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    collector = Collector()
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        tracing = Tracing.create(True, endpoint, "studio")
        trace = tracing.request("POST /v1/videos", {"traceparent": CALLER})
        run(trace)
        trace.finish("completed")
        tracing.close()
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    ((path, content_type, body),) = collector.posts
    assert path == "/v1/traces"
    assert content_type == "application/x-protobuf"
    message = ExportTraceServiceRequest.FromString(body)
    (resource,) = message.resource_spans
    service = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert service["service.name"] == "studio"
    sent = [span for scope in resource.scope_spans for span in scope.spans]
    assert {span.name for span in sent} == {"POST /v1/videos", "queue", "text", "denoise"}
    assert {span.trace_id.hex() for span in sent} == {"0af7651916cd43dd8448eb211c80319c"}


def test_a_collector_that_is_away_holds_nobody_up() -> None:
    with Collector() as gone:
        port = gone.server_port
    tracing = Tracing.create(True, f"http://127.0.0.1:{port}")
    trace = tracing.request("x")
    trace.finish("completed")
    begin = time.monotonic()
    tracing.close()
    tracing.close()
    assert time.monotonic() - begin < 8
