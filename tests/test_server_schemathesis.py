"""Requests made up from our own OpenAPI document: no answer is a 5xx or one it does not name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sgld.testing.served import served_here
from sgld.testing.toy_params import Hooks

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SMALLER = {"num_inference_steps": 2, "width": 64, "height": 64, "n": 2, "num_frames": 9}
ROUTES = {
    "toy-edit": ("POST /v1/images/generations", "POST /v1/images/edits"),
    "toy-video": ("POST /v1/videos",),
}
"""Model → where positive requests must sometimes work."""
OPERATIONS = [
    "GET /liveness",
    "GET /health",
    "GET /health_generate",
    "GET /server_info",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "POST /v1/images/generations",
    "POST /v1/images/edits",
    "GET /v1/images/{image_id}/content",
    "POST /v1/videos",
    "GET /v1/videos",
    "GET /v1/videos/{video_id}",
    "DELETE /v1/videos/{video_id}",
    "POST /v1/videos/{video_id}/cancel",
    "GET /v1/videos/{video_id}/content",
    "GET /v1/videos/{video_id}/events",
]
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAF0lEQVR4nGP8z0AaYCJR"
    "/aiGUQ1DSAMAQC4BH2bjRnMAAAAASUVORK5CYII="
)
Operations = tuple[str, dict[str, schemathesis.APIOperation]]


@pytest.fixture(scope="module", params=["toy-edit", "toy-video"])
def operations(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operations]:
    folder = tmp_path_factory.mktemp(request.param)
    limits = {"max_pixels": 16384, "max_frames": 9, "max_body_mib": 1}
    with served_here(f"tiny:{request.param}", folder, **limits) as server:
        raw = httpx.get(f"{server.url}/openapi.json", trust_env=False).json()
        for operation in raw["paths"].values():
            for media in _bodies(operation):
                media["schema"].pop("anyOf", None)
                _tame(media["schema"]["properties"])
                if "image" in media["schema"]["properties"]:
                    media["schema"]["required"].append("image")
        schema = schemathesis.openapi.from_dict(raw)
        schema.config.update(base_url=server.url)
        found = [result.ok() for result in schema.get_all_operations()]
        yield request.param, {operation.label: operation for operation in found}


def _bodies(operations: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for operation in operations.values():
        yield from operation.get("requestBody", {}).get("content", {}).values()


def _tame(properties: dict[str, Any]) -> None:
    """Leave out the hooks that make trouble on purpose, and most of the work."""
    for name in Hooks.model_fields:
        properties.pop(name, None)
    for name in ("image", "images", "url", "mask"):
        if name in properties and name != "image":
            properties.pop(name)
        elif name in properties and "binary" not in str(properties[name]):
            properties[name] = {"enum": [PICTURE]}
    for name, most in SMALLER.items():
        if name in properties:
            properties[name]["maximum"] = most


def test_every_operation_is_tried(operations: Operations) -> None:
    assert sorted(operations[1]) == sorted(OPERATIONS)


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("label", OPERATIONS)
def test_no_answer_is_a_surprise(operations: Operations, label: str, mode: str) -> None:
    statuses: set[int] = set()
    model, known = operations
    made = known[label].as_strategy(generation_mode=GenerationMode(mode))

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=made)
    def ask(case: schemathesis.Case) -> None:
        statuses.add(case.call_and_validate(checks=CHECKS, timeout=30).status_code)

    try:
        ask()
    except Unsatisfiable:  # there is no wrong way to ask for it
        assert mode == "negative"
    assert 200 in statuses or mode == "negative" or label not in ROUTES[model]
