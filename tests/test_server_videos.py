"""The video routes: jobs, paging, files, events and input pictures, on a real socket."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import av
import httpx
import numpy as np
import pytest
from PIL import Image

from sgld.server.answers import ErrorAnswer, Video, VideoDeleted, VideoList
from sgld.testing.served import Served, served_here

VIDEOS = "/v1/videos"
ALONE = {"max_running": 1, "batching": "off"}
"""One job at a time, and equal to the last bit whatever runs beside it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("video")
    with served_here("tiny:toy-video", folder, ALONE, max_frames=33) as served:
        yield served


@pytest.fixture(scope="module")
def web(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


class Pictures(BaseHTTPRequestHandler):
    """A listener that counts who asks it for a picture."""

    hits: list[str]
    body: bytes

    def do_GET(self) -> None:
        self.hits.append(self.path)
        self.send_response(200)
        self.send_header("content-type", "image/png")
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[str, list[str]]]:
    hits: list[str] = []
    handler = type("Handler", (Pictures,), {"hits": hits, "body": png()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{running.server_address[1]}", hits
        running.shutdown()
        thread.join()


def png(width: int = 96, height: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(buffer, "PNG")
    return buffer.getvalue()


def job(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    Video.model_validate_json(answer.text)
    return answer.json()


def error(answer: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    assert (answer.status_code, answer.json()["error"].get("code")) == (status, code), answer.text
    ErrorAnswer.model_validate_json(answer.text)
    assert answer.json()["error"]["param"] == param
    return answer.json()["error"]["message"]


def ended(web: httpx.Client, made: dict[str, Any]) -> dict[str, Any]:
    end = time.monotonic() + 60
    while made["status"] in ("queued", "in_progress"):
        assert time.monotonic() < end, made
        time.sleep(0.02)
        made = job(web.get(f"{VIDEOS}/{made['id']}"))
    return made


def create(web: httpx.Client, **fields: Any) -> dict[str, Any]:
    return job(web.post(VIDEOS, json={"prompt": "a kite", **fields}))


def frames(data: bytes) -> list[np.ndarray[Any, Any]]:
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def clip(web: httpx.Client, made: dict[str, Any]) -> bytes:
    """The pixels of a finished video; its file also holds what was asked for."""
    return b"".join(frame.tobytes() for frame in frames(web.get(made["url"]).content))


def events(web: httpx.Client, video_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with web.stream("GET", f"{VIDEOS}/{video_id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])


# Jobs


def test_a_job_from_queued_to_its_file(web: httpx.Client) -> None:
    given = {"size": "96x64", "seconds": "1", "fps": 10, "seed": 5, "num_inference_steps": 3}
    made = create(web, **given)
    assert (made["object"], made["status"], made["progress"]) == ("video", "queued", 0)
    assert (made["url"], made["error"], made["completed_at"]) == (None, None, None)
    done = ended(web, made)
    assert (done["status"], done["progress"], done["error"]) == ("completed", 100, None)
    # 10 frames were asked for; 9 is what such a model makes, and what is reported and in the file.
    assert (done["num_frames"], done["fps"], done["seconds"]) == (9, 10, "0.9")
    assert any("num_frames is 9 instead of 10" in text for text in done["warnings"])
    assert len(done["warnings"]) == len(set(done["warnings"]))
    used = done["parameters"]
    assert (used["seeds"], used["num_inference_steps"], used["width"]) == ([5], 3, 96)
    assert done["created_at"] <= done["started_at"] <= done["completed_at"]
    assert done["expires_at"] - done["completed_at"] == pytest.approx(7 * 86400, abs=1)
    file = web.get(done["url"])
    assert file.headers["content-type"] == "video/mp4"
    decoded = frames(file.content)
    assert (len(decoded), decoded[0].shape) == (9, (64, 96, 3))
    assert done["outputs"][0]["bytes"] == len(file.content)


def test_a_form_means_the_same_as_json(web: httpx.Client) -> None:
    given = {"prompt": "a kite", "size": "64x64", "seed": 1, "seconds": 1, "fps": 5}
    form = {name: (None, str(value)) for name, value in given.items()}
    both = [web.post(VIDEOS, json=given), web.post(VIDEOS, files=form)]
    assert len({clip(web, ended(web, job(answer))) for answer in both}) == 1


def test_several_outputs_are_variants(web: httpx.Client) -> None:
    done = ended(web, create(web, n=2, seed=[9, 4], output_format="gif", num_frames=5))
    assert [item["seed"] for item in done["outputs"]] == [9, 4]
    assert (done["num_outputs"], len(done["urls"])) == (2, 2)
    files = [web.get(url) for url in done["urls"]]
    assert {file.headers["content-type"] for file in files} == {"image/gif"}
    assert files[0].content != files[1].content
    content = f"{VIDEOS}/{done['id']}/content"
    for word, file in (("0", files[0]), ("1", files[1]), ("video", files[0])):
        assert web.get(content, params={"variant": word}).content == file.content
    error(web.get(content, params={"variant": 2}), 404, "variant_not_found", "variant")
    error(web.get(content, params={"variant": "thumbnail"}), 400, "invalid_parameter", "variant")
    alone = ended(web, create(web, seed=4, output_format="gif", num_frames=5))
    assert clip(web, alone) == b"".join(frame.tobytes() for frame in frames(files[1].content))


def test_formats_and_encoder_settings_reach_the_file(web: httpx.Client) -> None:
    sizes: dict[str, int] = {}
    for preset, quality in (("veryslow", 0), ("ultrafast", 100)):
        given = {"x264_preset": preset, "output_quality": quality, "seed": 1}
        sizes[preset] = ended(web, create(web, **given))["outputs"][0]["bytes"]
    assert sizes["veryslow"] < sizes["ultrafast"]
    webm = ended(web, create(web, output_format="webm", num_frames=5))
    file = web.get(webm["url"])
    assert (file.headers["content-type"], len(frames(file.content))) == ("video/webm", 5)
    error(web.post(VIDEOS, json={"prompt": "x", "output_format": "avi"}), 400, "invalid_parameter",
          "output_format")  # fmt: skip


def test_ranges_of_a_file(web: httpx.Client) -> None:
    url = ended(web, create(web))["url"]
    whole = web.get(url)
    size, etag = len(whole.content), whole.headers["etag"]
    assert whole.headers["accept-ranges"] == "bytes"
    for asked, part in (
        ("bytes=0-99", whole.content[:100]),
        ("bytes=100-", whole.content[100:]),
        ("bytes=-10", whole.content[-10:]),
        (f"bytes=10-{size + 500}", whole.content[10:]),
    ):
        answer = web.get(url, headers={"range": asked, "if-range": etag})
        assert (answer.status_code, answer.content) == (206, part)
        assert answer.headers["content-range"].endswith(f"/{size}")
    several = web.get(url, headers={"range": "bytes=0-9,20-29"})
    assert several.status_code == 206
    assert several.headers["content-type"].startswith("multipart/byteranges")
    message = error(web.get(url, headers={"range": f"bytes={size}-"}), 416, "range_not_satisfiable")
    assert str(size) in message


def test_paging(web: httpx.Client) -> None:
    ids = [ended(web, create(web, num_frames=1, num_inference_steps=1))["id"] for _ in range(5)]

    def page(**query: Any) -> dict[str, Any]:
        answer = web.get(VIDEOS, params=query)
        VideoList.model_validate_json(answer.text)
        return answer.json()

    newest = page(limit=2)
    assert [item["id"] for item in newest["data"]] == [ids[4], ids[3]]
    assert (newest["first_id"], newest["last_id"], newest["has_more"]) == (ids[4], ids[3], True)
    after = page(limit=3, after=newest["last_id"])
    assert [item["id"] for item in after["data"]] == [ids[2], ids[1], ids[0]]
    oldest = page(order="asc", after=ids[3])
    assert ([item["id"] for item in oldest["data"]], oldest["has_more"]) == ([ids[4]], False)
    assert page(order="asc", after=ids[4])["data"] == []
    for query in ({"limit": 0}, {"limit": 101}, {"order": "x"}):
        param = next(iter(query))
        error(web.get(VIDEOS, params=query), 400, "invalid_parameter", param)


def test_cancel_and_delete(web: httpx.Client, server: Served) -> None:
    running = create(web, step_delay=0.2, num_inference_steps=50)
    waiting = create(web)
    _until(web, running, "in_progress")
    assert job(web.get(f"{VIDEOS}/{waiting['id']}"))["status"] == "queued"
    error(web.get(f"{VIDEOS}/{running['id']}/content"), 404, "video_not_ready")
    cancelled = job(web.post(f"{VIDEOS}/{running['id']}/cancel"))
    assert (cancelled["status"], cancelled["error"]["code"]) == ("cancelled", "cancelled")
    assert cancelled["url"] is None
    error(web.post(f"{VIDEOS}/{running['id']}/cancel"), 409, "already_ended")
    assert ended(web, waiting)["status"] == "completed"
    file = server.services.outputs.open_path(f"{waiting['id']}/0.mp4")
    assert file.is_file()
    for made in (running, waiting):
        answer = web.delete(f"{VIDEOS}/{made['id']}")
        VideoDeleted.model_validate_json(answer.text)
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("GET", "/events"),
                             ("POST", "/cancel")):  # fmt: skip
            error(web.request(method, f"{VIDEOS}/{made['id']}{path}"), 404, "not_found")
    assert not file.exists()
    error(web.delete(f"{VIDEOS}/video_x"), 404, "not_found")


def _until(web: httpx.Client, made: dict[str, Any], status: str) -> None:
    end = time.monotonic() + 20
    while job(web.get(f"{VIDEOS}/{made['id']}"))["status"] != status:
        assert time.monotonic() < end
        time.sleep(0.02)


# Events


def test_events_of_a_job_that_completes(web: httpx.Client) -> None:
    create(web, step_delay=0.1)  # what the next one waits for
    made = create(web, preview_every=2, step_delay=0.05)
    seen = list(events(web, made["id"]))
    names = [name for name, _ in seen]
    assert (names[0], names[-1], names.count("step")) == ("queued", "done", 4)
    assert names.count("preview") >= 1
    steps = [data for name, data in seen if name == "step"]
    assert [(data["step"], data["total"]) for data in steps] == [(n, 4) for n in (1, 2, 3, 4)]
    progress = [data["progress"] for data in steps]
    assert progress == sorted(progress)
    assert {data["status"] for data in steps} == {"in_progress"}
    preview = next(data for name, data in seen if name == "preview")
    latents = np.load(io.BytesIO(base64.b64decode(preview["latents_npy"])))
    assert latents.dtype == np.float16
    assert latents.size
    Video.model_validate(seen[-1][1])
    assert seen[-1][1]["status"] == "completed"
    # Somebody who comes later gets the end at once.
    assert [name for name, _ in events(web, made["id"])] == ["done"]


def test_events_show_frames_of_the_clip_so_far(web: httpx.Client) -> None:
    made = create(web, partial_images=2, step_delay=0.05)
    seen = [data for name, data in events(web, made["id"]) if name == "preview"]
    assert [(data["index"], data["step"]) for data in seen] == [(0, 1), (0, 2)]
    for data in seen:
        with Image.open(io.BytesIO(base64.b64decode(data["jpeg"]))) as image:
            assert (image.format, image.size) == ("JPEG", (64, 64))
    assert seen[0]["jpeg"] != seen[1]["jpeg"]


def test_events_of_a_job_that_fails(web: httpx.Client) -> None:
    made = create(web, fail_at_step=2)
    name, data = list(events(web, made["id"]))[-1]
    assert (name, data["status"], data["error"]["code"]) == ("failed", "failed", "stage_failed")
    assert data["url"] is None
    assert ended(web, create(web))["status"] == "completed"


def test_events_of_a_job_that_is_cancelled(web: httpx.Client) -> None:
    made = create(web, step_delay=0.2, num_inference_steps=50)
    for name, _ in (follow := events(web, made["id"])):
        if name == "step":
            web.post(f"{VIDEOS}/{made['id']}/cancel")
            break
    assert [name for name, _ in follow][-1] == "cancelled"


# Refusals


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"num_frames": 0}, "num_frames", "from 1"),
        ({"num_frames": -3}, "num_frames", "from 1"),
        ({"num_frames": 37}, "num_frames", "limit of this server is 33"),
        ({"seconds": 0}, "seconds", "above 0"),
        ({"fps": 0}, "fps", "from 1"),
        ({"size": "720x1281"}, "size", "720x1280"),
        ({"input_reference": "data:image/png;base64,AAAA"}, "input_reference", "no input picture"),
        ({"response_format": "url"}, "response_format", "content"),
        ({"image": "x"}, "image", "input_reference"),
        ({"num_frame": 3}, "num_frame", "num_frames"),
        ({"file_path": "/etc/x"}, "file_path", "no paths"),
    ],
)
def test_refusals(web: httpx.Client, fields: dict[str, Any], param: str, words: str) -> None:
    answer = web.post(VIDEOS, json={"prompt": "x", **fields})
    assert answer.status_code == 400, answer.text
    body = answer.json()["error"]
    assert body["param"] == param
    assert words in body["message"]


def test_a_wrong_model_and_a_wrong_task(web: httpx.Client) -> None:
    answer = web.post(VIDEOS, json={"model": "sora-2", "prompt": "x"})
    assert "toy-video" in error(answer, 404, "model_not_found", "model")
    for route in ("/v1/images/generations", "/v1/images/edits"):
        message = error(web.post(route, json={"prompt": "x"}), 400, "unsupported_task")
        assert "POST /v1/videos" in message


# Input pictures, on a model that starts from one


@pytest.fixture(scope="module")
def wan(
    tmp_path_factory: pytest.TempPathFactory, listener: tuple[str, list[str]]
) -> Iterator[httpx.Client]:
    host = listener[0].split(":")[0]
    folder = tmp_path_factory.mktemp("wan")
    with (
        served_here("tiny:wan-i2v", folder, allow_media_host=(host,), max_pixels=8192) as served,
        httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client,
    ):
        yield client


def test_a_picture_in_every_way_makes_the_same_clip(
    wan: httpx.Client, listener: tuple[str, list[str]]
) -> None:
    address, hits = listener
    hits.clear()
    url = f"http://{address}/picture.png"
    data_url = "data:image/png;base64," + base64.b64encode(png()).decode()
    given = {"prompt": "a kite", "seed": 2, "num_frames": 5, "num_inference_steps": 2}
    form = {name: str(value) for name, value in given.items()}
    answers = [
        wan.post(VIDEOS, data=form, files={"input_reference": ("../../x.png", png())}),
        wan.post(VIDEOS, data={**form, "input_reference": url}, files={"x": ("", b"")}),
        wan.post(VIDEOS, json={**given, "input_reference": data_url}),
        wan.post(VIDEOS, json={**given, "input_reference": {"image_url": data_url}}),
        wan.post(VIDEOS, json={**given, "reference_url": url}),
    ]
    done = [ended(wan, job(answer)) for answer in answers]
    assert {item["status"] for item in done} == {"completed"}, done[0]["error"]
    assert len({clip(wan, item) for item in done}) == 1
    assert hits == ["/picture.png", "/picture.png"]
    assert all(item["size"] == "96x64" for item in done)


def test_a_picture_is_required_and_must_be_one(wan: httpx.Client) -> None:
    answer = wan.post(VIDEOS, json={"prompt": "x"})
    assert "input_reference" in error(answer, 400, "missing_parameter", "input_reference")
    files = {"input_reference": ("a.png", b"text")}
    answer = wan.post(VIDEOS, data={"prompt": "x"}, files=files)
    error(answer, 400, "invalid_parameter", "input_reference")
    assert wan.get(VIDEOS).json()["data"] == [] or answer.status_code == 400
