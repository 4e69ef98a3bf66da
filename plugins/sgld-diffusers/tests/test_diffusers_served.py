"""The fallback behind the HTTP server and the command line."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from sgld.plugins.catalog import load_target
from sgld.testing.engine_rig import picture
from sgld.testing.served import Served, served_apart, served_here, wait_for
from sgld_diffusers.tiny import BLUEPRINTS


@pytest.fixture(scope="module")
def image_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_here("tiny:diffusers:sd3", tmp_path_factory.mktemp("sd3")) as server:
        yield server


def post(server: Served, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60, trust_env=False)


def status(address: str) -> str:
    return httpx.get(address, timeout=30, trust_env=False).json()["status"]


def png(data: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def test_pictures(image_server: Served) -> None:
    body = {"prompt": "a lamp", "size": "64x64", "seed": 4, "num_inference_steps": 2, "n": 2,
            "response_format": "b64_json"}  # fmt: skip
    answer = post(image_server, "/v1/images/generations", **body)
    assert answer.status_code == 200, answer.text
    first, second = (png(row["b64_json"]) for row in answer.json()["data"])
    assert first.shape == (64, 64, 3)
    assert not np.array_equal(first, second)


def test_a_wrong_parameter_is_400_before_anything_runs(image_server: Served) -> None:
    answer = post(
        image_server, "/v1/images/generations",
        prompt="x", size="65x64", latents=[1], clip_skipp=1, num_frames=3,
    )  # fmt: skip
    assert answer.status_code == 400
    text = answer.text
    for word in ("multiples of 16", "latents", "clip_skipp", "num_frames"):
        assert word in text


def test_what_the_pipeline_itself_refuses_is_the_callers_fault(image_server: Served) -> None:
    answer = post(
        image_server, "/v1/images/generations",
        prompt="x", size="64x64", num_inference_steps=1, max_sequence_length=600,
    )  # fmt: skip
    assert answer.status_code == 400, answer.text
    assert "512" in answer.text
    assert post(
        image_server, "/v1/images/generations", prompt="x", size="64x64", num_inference_steps=1
    ).is_success


def test_the_model_tells_its_own_parameters(image_server: Served) -> None:
    root = f"{image_server.url}/v1/models"
    card = httpx.get(root, timeout=30, trust_env=False).json()["data"][0]
    assert card["supported_task_types"] == ["text-to-image"]
    full = httpx.get(f"{root}/{card['id']}", timeout=30, trust_env=False).json()
    names = {row["name"]: row for row in full["parameters"]}
    assert names["max_sequence_length"]["default"] == 256
    assert "num_frames" not in names
    clips = httpx.post(f"{image_server.url}/v1/videos", json={"prompt": "x"}, trust_env=False)
    assert clips.status_code in (400, 404)


def test_edits(tmp_path: Path) -> None:
    serving = {"pipeline_class_name": "StableDiffusion3Img2ImgPipeline"}
    buffer = io.BytesIO()
    Image.fromarray(picture()).resize((64, 64)).save(buffer, "PNG")
    with served_here("tiny:diffusers:sd3", tmp_path, serving) as server:
        answer = httpx.post(
            f"{server.url}/v1/images/edits",
            data={"prompt": "a lamp", "size": "64x64", "seed": "3", "num_inference_steps": "4",
                  "strength": "0.5", "response_format": "b64_json"},
            files={"image": ("a.png", buffer.getvalue(), "image/png")},
            timeout=60,
            trust_env=False,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        assert png(answer.json()["data"][0]["b64_json"]).shape == (64, 64, 3)
        missing = post(server, "/v1/images/edits", prompt="x")
        assert missing.status_code == 400


def test_clips_by_a_server_and_its_engine_process(tmp_path: Path) -> None:
    folder = tmp_path / "ltx"
    load_target(BLUEPRINTS["ltx-video"])(folder)  # here, where torch is there already
    with served_apart(str(folder), tmp_path) as server:
        body = {"prompt": "waves", "size": "64x64", "num_frames": 10, "num_inference_steps": 2,
                "seed": 5, "fps": 12}  # fmt: skip
        made = post(server, "/v1/videos", **body).json()
        assert made["id"], made
        address = f"{server.url}/v1/videos/{made['id']}"
        wait_for(lambda: status(address) in ("completed", "failed"), "the clip")
        job = httpx.get(address, timeout=30, trust_env=False).json()
        assert job["status"] == "completed", job
        assert "num_frames is 9 instead of 10" in str(job)
        content = httpx.get(f"{address}/content", timeout=30, trust_env=False)
        assert content.headers["content-type"] == "video/mp4"
        assert len(content.content) > 500
