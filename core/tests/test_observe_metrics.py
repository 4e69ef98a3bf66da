"""Metrics, as a scraper reads them."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as read_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from sgld.messages import Event
from sgld.observe.metrics import METRICS, MOST_VALUES, REQUEST_BUCKETS, Meter, Metrics

ROOT = Path(__file__).parents[2]


@dataclass
class State:
    status: str = "ready"
    restarts: int = 0
    device_memory: dict[str, int] | None = field(default_factory=dict)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scrape(metrics: Metrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name → labels → value."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(metrics.render().body.decode()):
        for sample in family.samples:
            key = tuple(sorted(sample.labels.items()))
            assert key not in found.setdefault(sample.name, {}), f"{sample.name} {key} twice"
            found[sample.name][key] = sample.value
    return found


def at(metrics: Metrics, name: str, **labels: str) -> float:
    return scrape(metrics)[name][tuple(sorted(labels.items()))]


def test_a_requests_life() -> None:
    metrics = Metrics()
    metrics.request_started("video")
    metrics.queue(3)
    metrics.running(2)
    metrics.request_finished("video", "completed", "", 7.0)
    metrics.request_finished("video", "failed", "out_of_memory", 1.5)
    metrics.request_finished("image", "cancelled", "cancelled", 0.2)
    metrics.cancelled("image", "disconnect")
    metrics.bytes_out(1000)
    metrics.bytes_out(24)
    metrics.bytes_stored(5000)
    metrics.bytes_uploaded(77)
    metrics.streams(1)
    metrics.streams(1)
    metrics.streams(-1)
    metrics.served("0.1.0", "wan", "WanPipeline")
    expected = [
        ("sgld_requests_received_total", {"kind": "video"}, 1),
        ("sgld_requests_received_total", {"kind": "image"}, 0),
        ("sgld_queue_length", {}, 3),
        ("sgld_requests_running", {}, 2),
        ("sgld_requests_total", {"kind": "video", "status": "completed", "code": ""}, 1),
        ("sgld_requests_total", {"kind": "video", "status": "failed", "code": "out_of_memory"}, 1),
        ("sgld_failures_total", {"kind": "video", "code": "out_of_memory"}, 1),
        ("sgld_cancellations_total", {"kind": "image", "reason": "disconnect"}, 1),
        ("sgld_request_duration_seconds_count", {"kind": "video", "status": "completed"}, 1),
        ("sgld_request_duration_seconds_sum", {"kind": "video", "status": "completed"}, 7.0),
        ("sgld_sent_bytes_total", {}, 1024),
        ("sgld_outputs_stored_bytes", {}, 5000),
        ("sgld_uploaded_bytes_total", {}, 77),
        ("sgld_event_streams_open", {}, 1),
        ("sgld_build_info", {"version": "0.1.0", "model": "wan", "pipeline": "WanPipeline"}, 1),
    ]
    for name, labels, value in expected:
        assert at(metrics, name, **labels) == value, name
    assert len(scrape(metrics)["sgld_failures_total"]) == 1


def test_buckets_are_cumulative_and_the_documented_ones() -> None:
    metrics = Metrics()
    metrics.request_finished("video", "completed", "", 7.0)
    buckets = {
        dict(labels)["le"]: value
        for labels, value in scrape(metrics)["sgld_request_duration_seconds_bucket"].items()
    }
    assert [float(bound) for bound in buckets] == [*REQUEST_BUCKETS, float("inf")]
    assert buckets["5.0"] == 0
    assert buckets["10.0"] == 1
    assert buckets["+Inf"] == 1


def test_the_engines_state_is_one_hot_and_restarts_only_grow() -> None:
    metrics = Metrics()
    assert at(metrics, "sgld_engine_state", state="starting") == 1
    for restarts, status in ((0, "ready"), (1, "restarting"), (1, "ready"), (3, "ready")):
        metrics.engine_state(State(status, restarts))
        states = scrape(metrics)["sgld_engine_state"]
        assert sum(states.values()) == 1
        assert at(metrics, "sgld_engine_state", state=status) == 1
    assert at(metrics, "sgld_engine_restarts_total") == 3


@pytest.mark.parametrize(
    ("memory", "used", "total"),
    [
        ({"used": 3, "total": 10}, 3, 10),
        ({"free": 4, "total": 10}, 6, 10),
        ({}, 0, 0),
        (None, 0, 0),
    ],
)
def test_device_memory(memory: dict[str, int] | None, used: int, total: int) -> None:
    metrics = Metrics()
    metrics.engine_state(State("ready", 0, memory))
    assert at(metrics, "sgld_device_memory_used_bytes") == used
    assert at(metrics, "sgld_device_memory_total_bytes") == total


def test_http_counts_by_pattern() -> None:
    metrics = Metrics()
    metrics.http("GET", "/v1/videos/{job_id}", 200, 0.002)
    metrics.http("GET", "", 404, 0.001)
    metrics.http("BREW", "", 405, 0.001)
    labels = {"method": "GET", "route": "/v1/videos/{job_id}"}
    assert at(metrics, "sgld_http_requests_total", status="200", **labels) == 1
    assert at(metrics, "sgld_http_request_duration_seconds_sum", **labels) == 0.002
    unmatched = {"route": "unmatched", "status": "404", "method": "GET"}
    assert at(metrics, "sgld_http_requests_total", **unmatched) == 1
    other = {"route": "unmatched", "status": "405", "method": "other"}
    assert at(metrics, "sgld_http_requests_total", **other) == 1


def test_labels_stay_few_whatever_a_plugin_sends() -> None:
    metrics = Metrics()
    for number in range(3 * MOST_VALUES):
        metrics.stage(f"stage-{number}", 0.1)
    counts = scrape(metrics)["sgld_stage_duration_seconds_count"]
    assert len(counts) == MOST_VALUES + 1
    assert counts[(("stage", "other"),)] == 2 * MOST_VALUES


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.stage('a"b\nc\\d', 0.1)
    assert at(metrics, "sgld_stage_duration_seconds_count", stage='a"b\nc\\d') == 1


def test_the_meter_follows_a_request() -> None:
    metrics, clock = Metrics(), Clock()
    meter = Meter(metrics, "video", clock)
    meter.event(Event("queued", "r"))
    clock.now += 2
    meter.event(Event("started", "r"))
    meter.event(Event("stage", "r", stage="text", seconds=0.25))
    clock.now += 3
    for step in (1, 2):
        meter.event(Event("step", "r", stage="denoise", step=step, total=2))
        clock.now += 1
    # The engine was lost: the request starts over, and has waited and begun before.
    for kind in ("queued", "started", "step"):
        meter.event(Event(kind, "r"))
    meter.event(Event("done", "r"))
    assert at(metrics, "sgld_request_queue_seconds_sum", kind="video") == 2
    assert at(metrics, "sgld_request_queue_seconds_count", kind="video") == 1
    assert at(metrics, "sgld_request_first_step_seconds_sum", kind="video") == 5
    assert at(metrics, "sgld_request_first_step_seconds_count", kind="video") == 1
    assert at(metrics, "sgld_stage_duration_seconds_sum", stage="text") == 0.25
    assert at(metrics, "sgld_steps_total", kind="video") == 3


def test_two_servers_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.step("video")
    assert at(first, "sgld_steps_total", kind="video") == 1
    assert at(second, "sgld_steps_total", kind="video") == 0


def test_threads_lose_nothing() -> None:
    metrics = Metrics()

    def count() -> None:
        for _ in range(500):
            metrics.step("video")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at(metrics, "sgld_steps_total", kind="video") == 2000


def test_formats() -> None:
    metrics = Metrics()
    metrics.step("video")
    metrics.stage("text", 0.1)
    plain = metrics.render("*/*")
    assert plain.content_type.startswith("text/plain; version=0.0.4")
    assert b"_created" not in plain.body
    asked = metrics.render("application/openmetrics-text; version=1.0.0")
    assert asked.content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in read_openmetrics(asked.body.decode())}
    assert families["sgld_steps"].type == "counter"
    assert families["sgld_stage_duration_seconds"].type == "histogram"


def test_memory_of_sessions_is_shown_in_sum() -> None:
    metrics = Metrics()

    def shown() -> tuple[float | None, float | None]:
        names = ("sgld_session_reserved_bytes", "sgld_session_state_bytes")
        reserved, held = (metrics.registry.get_sample_value(name) for name in names)
        return reserved, held

    assert shown() == (0, 0)
    metrics.session_memory("a", reserved=100)
    metrics.session_memory("b", reserved=50)
    metrics.session_memory("a", held=90)
    metrics.session_memory("a", held=95)
    assert shown() == (150, 95)
    metrics.session_released("a")
    metrics.session_released("a")
    assert shown() == (50, 0)
    metrics.session_released("b")
    assert shown() == (0, 0)
    metrics.chunks_dropped(3)
    assert metrics.registry.get_sample_value("sgld_session_chunks_dropped_total") == 3


def test_every_metric_is_declared_and_every_declared_one_is_shown() -> None:
    metrics = Metrics()
    shown = {
        family.name: family
        for family in text_string_to_metric_families(metrics.render().body.decode())
    }
    for row in METRICS:
        family = shown[row.name.removesuffix("_total") if row.type == "counter" else row.name]
        assert (family.type, family.documentation) == (row.type, row.help)
        assert (row.type == "counter") == row.name.endswith("_total")
    ours = {name for name in shown if name.startswith("sgld_")}
    assert len(ours) == len(METRICS)
    assert "process_cpu_seconds" in shown or sys.platform != "linux"
    assert "python_info" in shown


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_metrics.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_nothing_here_needs_torch_or_opentelemetry() -> None:
    code = (
        "import sys, sgld.observe.metrics, sgld.observe.logs, sgld.observe.requests\n"
        "import sgld.observe.profile\n"
        "from sgld.observe.tracing import Tracing\n"
        "trace = Tracing.create(False).request('GET /')\n"
        "trace.finish('completed')\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'opentelemetry')]\n"
        "sys.exit(f'imported: {bad[:3]}' if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
