"""The request by which a server finds out whether a model works, for every family."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from sgld.api.errors import ParameterError
from sgld.messages import Request
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.server.warmup import smallest_request
from sgld.testing.engine_rig import EngineRig
from sgld.testing.served import served_here
from sgld_diffusers.lent import Lent
from sgld_diffusers.tiny import FAMILIES

SHOWN_A_MILLION = {"qwen-image-edit-plus"}
"""Runs as `qwen-image-edit` does, and every run shows its networks a million pixels."""


def planned(folder: Path, **more: Any) -> ModelPlan:
    return make_plan(
        ServingOptions(model_path=str(folder), device="cpu", backend="diffusers", **more)
    )


# diffusers' own, on a CPU.
@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - SHOWN_A_MILLION))
def test_the_warm_up_of_every_family_runs(name: str, checkpoint: Callable[[str], Path]) -> None:
    with EngineRig(planned(checkpoint(name))) as rig:
        params, seeds, images = smallest_request(rig.plan)
        assert params["width"] == params["height"] == 64
        assert params["num_inference_steps"] == 2
        assert params.get("num_frames", 1) == 1
        request = Request(f"warmup-{uuid.uuid4().hex[:8]}", params, seeds, images)
        assert rig.run(request).frames.any()


def test_a_size_of_the_users_is_not_dropped(checkpoint: Callable[[str], Path]) -> None:
    plan = planned(checkpoint("sd3"))
    params, _, _ = smallest_request(plan, "96x64")
    assert (params["width"], params["height"]) == (96, 64)
    with pytest.raises(ParameterError, match="multiples of 16"):
        smallest_request(plan, "65x64")
    plan.close()


def test_a_family_that_needs_two_steps_is_warmed(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with (
        structlog.testing.capture_logs() as logs,
        served_here(str(checkpoint("ltx-video")), tmp_path) as server,
    ):
        assert httpx.get(f"{server.url}/health", timeout=30, trust_env=False).status_code == 200
    assert "warm-up failed" not in [row["event"] for row in logs]


def test_a_warm_up_that_fails_is_told_and_the_server_is_ready(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise IndexError("too small a picture")

    monkeypatch.setattr(Lent, "forward", fail)
    with (
        structlog.testing.capture_logs() as logs,
        served_here(str(checkpoint("sd3")), tmp_path) as server,
    ):
        assert httpx.get(f"{server.url}/health", timeout=30, trust_env=False).status_code == 200
    [told] = [row for row in logs if row["event"] == "warm-up failed"]
    assert told["log_level"] == "warning"
    assert "too small a picture" in told["reason"]
