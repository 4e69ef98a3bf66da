"""Reported faults of other servers, as tests of ours: cases A01 to A29 at server level.

`same` means equal decoded pixels. Numbers refer to the list of cases in the tests' names.
"""

from __future__ import annotations

import base64
import io
import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from sgld.testing.served import Served, served_here

GENERATE = "/v1/images/generations"
EDIT = "/v1/images/edits"
VIDEOS = "/v1/videos"


def _serving(model: str, folder: Path, **options: Any) -> Iterator[httpx.Client]:
    with (
        served_here(model, folder, **options) as served,
        httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module", params=["toy-edit", "flux.1-schnell"])
def model(request: pytest.FixtureRequest) -> str:
    """What makes the pictures: the toy family, and a real one."""
    return request.param


@pytest.fixture(scope="module")
def edit_server(
    tmp_path_factory: pytest.TempPathFactory, model: str
) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("edit")
    with served_here(f"tiny:{model}", folder, max_pixels=65536) as served:
        yield served, folder


@pytest.fixture(scope="module")
def web(edit_server: tuple[Served, Path]) -> Iterator[httpx.Client]:
    url = edit_server[0].url
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@pytest.fixture(scope="module")
def toy(toy_folder: Path) -> Iterator[httpx.Client]:
    """The family with hooks that make trouble."""
    yield from _serving("tiny:toy-edit", toy_folder)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("video")
    yield from _serving("tiny:toy-video", folder, max_pixels=65536)


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from _serving("tiny:wan-i2v", tmp_path_factory.mktemp("wan"), max_pixels=65536)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def plain(width: int = 64, height: int = 64, colour: Any = "red") -> bytes:
    return png(Image.new("RGB", (width, height), colour))


def pixels(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def files(answer: httpx.Response) -> list[npt.NDArray[np.uint8]]:
    assert answer.status_code == 200, answer.text
    return [pixels(base64.b64decode(item["b64_json"])) for item in answer.json()["data"]]


def make(web: httpx.Client, **fields: Any) -> list[npt.NDArray[np.uint8]]:
    body = {"prompt": "a lamp", "response_format": "b64_json", **fields}
    return files(web.post(GENERATE, json=body))


def edit(web: httpx.Client, picture: bytes, **fields: Any) -> httpx.Response:
    data = {"prompt": "add a kite", "response_format": "b64_json", **fields}
    return web.post(EDIT, data=data, files={"image": ("a.png", picture)})


def refused(answer: httpx.Response, param: str, *words: str) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    for word in words:
        assert word in error["message"]


def ended(web: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    job = answer.json()
    end = time.monotonic() + 60
    while job["status"] in ("queued", "in_progress"):
        assert time.monotonic() < end
        time.sleep(0.02)
        job = web.get(f"{VIDEOS}/{job['id']}").json()
    return job


def count_frames(web: httpx.Client, job: dict[str, Any]) -> tuple[int, int, int]:
    data = io.BytesIO(web.get(job["url"]).content)
    with av.open(data) as container:
        stream = container.streams.video[0]
        return sum(1 for _ in container.decode(stream)), stream.width, stream.height


@pytest.mark.parametrize(("width", "height"), [(120, 128), (128, 120), (17, 31), (16, 16)])
def test_a01_an_input_off_the_grid(web: httpx.Client, width: int, height: int) -> None:
    answer = edit(web, plain(width, height))
    made = files(answer)[0]
    assert answer.json()["size"] == f"{made.shape[1]}x{made.shape[0]}"
    assert made.shape[0] % 16 == made.shape[1] % 16 == 0
    assert abs(made.shape[1] / made.shape[0] - width / height) < 0.6
    assert make(web)[0].shape == (64, 64, 3)


def test_a01_an_explicit_size_is_never_changed(web: httpx.Client) -> None:
    refused(edit(web, plain(), size="120x128"), "size", "16 pixels", "112x128 and 128x128")


@pytest.mark.parametrize(("asked", "real"), [(1, 1), (4, 1), (5, 5), (6, 5), (8, 5), (9, 9)])
def test_a02_the_reported_count_is_in_the_file(video: httpx.Client, asked: int, real: int) -> None:
    job = ended(video, video.post(VIDEOS, json={"prompt": "x", "num_frames": asked, "fps": 8}))
    assert (job["num_frames"], count_frames(video, job)[0]) == (real, real)
    assert float(job["seconds"]) == pytest.approx(real / 8, abs=0.001)
    assert bool(job["warnings"]) == (asked != real)


def test_a02_seconds_and_senseless_counts(video: httpx.Client) -> None:
    job = ended(video, video.post(VIDEOS, json={"prompt": "x", "seconds": 1, "fps": 10}))
    assert (job["num_frames"], count_frames(video, job)[0]) == (9, 9)
    before = len(video.get(VIDEOS, params={"limit": 100}).json()["data"])
    for count in (0, -3):
        refused(video.post(VIDEOS, json={"prompt": "x", "num_frames": count}), "num_frames")
    assert len(video.get(VIDEOS, params={"limit": 100}).json()["data"]) == before


@pytest.mark.parametrize("steps", [0, -1, 1.5, "ten", True, 100001])
def test_a03_senseless_steps_on_every_route(
    web: httpx.Client, video: httpx.Client, steps: Any
) -> None:
    image = "data:image/png;base64," + base64.b64encode(plain()).decode()
    body = {"prompt": "x", "num_inference_steps": steps}
    for answer in (
        web.post(GENERATE, json=body),
        web.post(EDIT, json={**body, "image": image}),
        edit(web, plain(), num_inference_steps=str(steps).lower()),
        video.post(VIDEOS, json=body),
    ):
        refused(answer, "num_inference_steps", "from 1 to 1000")


def test_a03_null_is_the_models_default(web: httpx.Client) -> None:
    answer = web.post(GENERATE, json={"prompt": "x", "num_inference_steps": None})
    assert answer.json()["parameters"]["num_inference_steps"] == 4


def test_a05_every_picture_can_be_made_again_alone(web: httpx.Client) -> None:
    body = {"prompt": "a lamp", "response_format": "b64_json", "seed": 11, "n": 3}
    answer = web.post(GENERATE, json=body)
    seeds = [item["seed"] for item in answer.json()["data"]]
    assert seeds == [11, 12, 13]
    for seed, picture in zip(seeds, files(answer), strict=True):
        # Those of one request share forwards, which may round differently.
        difference = make(web, seed=seed)[0].astype(int) - picture
        assert np.abs(difference).max() <= 1


def test_a06_n_is_obeyed_or_refused(web: httpx.Client) -> None:
    four = make(web, n=4, seed=1)
    assert len({picture.tobytes() for picture in four}) == 4
    assert len(make(web, n=1)) == 1
    for wrong in (0, -1, 11, 10**9, "2", 1.5):
        refused(web.post(GENERATE, json={"prompt": "x", "n": wrong}), "n", "from 1 to 10")
    assert len(files(edit(web, plain(), n="2"))) == 2


def test_a07_guidance_reaches_the_sampler(web: httpx.Client, model: str) -> None:
    name = {"toy-edit": "guidance_scale"}.get(model, "true_cfg_scale")

    def scale(value: float, **more: Any) -> bytes:
        return make(web, seed=3, **{name: value}, **more)[0].tobytes()

    off = scale(1.0)
    if model == "toy-edit":
        assert scale(1.0, negative_prompt="blur") == off
    else:  # a family that has no negative prompt of its own says that this one does nothing
        body = {"prompt": "x", name: 1.0, "negative_prompt": "blur"}
        refused(web.post(GENERATE, json=body), "negative_prompt", "no effect")
    blur, empty = scale(5.0, negative_prompt="blur"), scale(5.0, negative_prompt="")
    assert len({off, blur, empty}) == 3
    answer = web.post(GENERATE, json={"prompt": "x", "negative_prompt": "", name: 2.25})
    assert answer.json()["parameters"][name] == 2.25


@pytest.mark.parametrize(
    "size", ["90000x90000", "64x0", "x", "64*64", "64x64x64", "272x256", "", "-64x64", "64"]
)
def test_a14_absurd_sizes(web: httpx.Client, video: httpx.Client, size: str) -> None:
    image = "data:image/png;base64," + base64.b64encode(plain()).decode()
    begin = time.monotonic()
    for client, route, more in ((web, GENERATE, {}), (web, EDIT, {"image": image}),
                                (video, VIDEOS, {})):  # fmt: skip
        refused(client.post(route, json={"prompt": "x", "size": size, **more}), "size")
    assert time.monotonic() - begin < 1


def test_a14_sizes_that_mean_something(web: httpx.Client) -> None:
    for size in ("auto", " 64 x 64 ", "64X64"):
        assert make(web, size=size)[0].shape == (64, 64, 3)
    assert make(web, size="256x256")[0].shape == (256, 256, 3)
    refused(web.post(GENERATE, json={"prompt": "x", "width": 64}), "width", "height")
    limit = web.post(GENERATE, json={"prompt": "x", "size": "272x256"})
    refused(limit, "size", "65536")


NAMES = ["../../escape.png", "..\\..\\escape.png", "/abs/escape.png", "a" * 300, "a\0b.png", "CON"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a15_a_file_name_chooses_no_path(
    edit_server: tuple[Served, Path], web: httpx.Client, wan: httpx.Client, name: str
) -> None:
    folder = edit_server[1]
    before = set(folder.parent.rglob("*escape*"))
    head = f'Content-Disposition: form-data; name="image"; filename="{name}"'
    for client, route, field in ((web, EDIT, "image"), (wan, VIDEOS, "input_reference")):
        body = (
            b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n--b\r\n'
            + head.replace("image", field, 1).encode("latin-1")
            + b"\r\nContent-Type: image/png\r\n\r\n" + plain() + b"\r\n--b--\r\n"
        )  # fmt: skip
        answer = client.post(
            route, content=body, headers={"content-type": "multipart/form-data; boundary=b"}
        )
        assert answer.status_code in (200, 400), answer.text
        assert answer.status_code == 200 or "\0" in name, answer.text
    assert set(folder.parent.rglob("*escape*")) == before
    inside = {path.name for path in folder.iterdir()}
    assert inside == {"state", "outputs"}
    assert not Path("/abs").exists()


def test_a15_callers_choose_no_path(web: httpx.Client) -> None:
    for field in ("output_path", "output_file_name", "file_path"):
        refused(web.post(GENERATE, json={"prompt": "x", field: "../x"}), field, "no paths")
        answer = edit(web, plain(), **{field: "../x"})
        refused(answer, field, "no paths")


class Counting(BaseHTTPRequestHandler):
    """Answers every GET with a picture and counts it."""

    hits: list[str]

    def do_GET(self) -> None:
        self.hits.append(self.path)
        body = plain()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def inside() -> Iterator[tuple[int, list[str]]]:
    hits: list[str] = []
    handler = type("Handler", (Counting,), {"hits": hits})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        thread = Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        yield listener.server_address[1], hits
        listener.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:{port}/x.png",
        "http://[::1]:{port}/x.png",
        "http://0x7f000001:{port}/x.png",
        "http://2130706433:{port}/x.png",
        "http://localhost:{port}/x.png",
        "http://[::ffff:127.0.0.1]:{port}/x.png",
        "http://169.254.0.1/",
        "http://10.0.0.1/x.png",
        "file:///etc/hostname",
        "ftp://127.0.0.1:{port}/x.png",
        "//127.0.0.1:{port}/x.png",
        "/etc/hostname",
    ],
)
def test_a16_inside_addresses_are_not_fetched(
    web: httpx.Client, wan: httpx.Client, inside: tuple[int, list[str]], address: str
) -> None:
    port, hits = inside
    url = address.format(port=port)
    for client, route, field in (
        (web, EDIT, "url"), (web, EDIT, "image"), (wan, VIDEOS, "reference_url"),
        (wan, VIDEOS, "input_reference"),
    ):  # fmt: skip
        answer = client.post(route, json={"prompt": "x", field: url})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == field
    assert hits == []


def test_a16_an_allowed_host_is_fetched(tmp_path: Path, inside: tuple[int, list[str]]) -> None:
    port, hits = inside
    for client in _serving("tiny:flux.1-schnell", tmp_path, allow_media_host=("127.0.0.1",)):
        url = f"http://127.0.0.1:{port}/y.png"
        assert client.post(EDIT, json={"prompt": "x", "url": url}).status_code == 200
        refused(client.post(EDIT, json={"prompt": "x", "url": f"http://[::1]:{port}/"}), "url")
    assert hits == ["/y.png"]
    hits.clear()


def test_a17_transparency_is_white(web: httpx.Client) -> None:
    clear = Image.new("RGBA", (64, 64), (0, 255, 0, 0))
    clear.paste((255, 0, 0, 255), (0, 0, 32, 64))
    white = Image.new("RGB", (64, 64), "white")
    white.paste((255, 0, 0), (0, 0, 32, 64))
    made = [files(edit(web, png(one), seed="1"))[0] for one in (clear, white)]
    assert np.array_equal(*made)


def test_a17_masks(web: httpx.Client, model: str) -> None:
    strokes = np.zeros((64, 64), np.uint8)
    strokes[:, :32] = 255
    grey = Image.fromarray(strokes)
    alpha = Image.new("RGBA", (64, 64), "black")
    alpha.putalpha(Image.fromarray(255 - strokes))
    common = {"prompt": "x", "seed": "1", "response_format": "b64_json"}

    def masked(mask: Image.Image) -> httpx.Response:
        upload = {"image": ("a.png", plain()), "mask": ("m.png", png(mask))}
        return web.post(EDIT, data=common, files=upload)

    if model != "toy-edit":
        refused(masked(grey), "mask", "edits the whole picture")
        return
    made = [files(masked(mask))[0] for mask in (grey, alpha, grey.convert("1"))]
    assert (made[0][:, 32:] == (255, 0, 0)).all()  # where the mask is dark the picture stays
    assert (made[0][:, :32] != (255, 0, 0)).any()
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])
    refused(masked(Image.new("L", (64, 64), 0)), "mask", "blank")
    refused(masked(grey.resize((32, 64))), "mask", "64x64")


@pytest.mark.parametrize(("width", "height"), [(16, 16), (64, 64), (80, 48)])
def test_a28_the_file_has_the_size_that_the_job_reports(
    video: httpx.Client, width: int, height: int
) -> None:
    body = {"prompt": "x", "size": f"{width}x{height}"}
    job = ended(video, video.post(VIDEOS, json=body))
    output = job["outputs"][0]
    assert job["size"] == f"{width}x{height}"
    assert (output["frames"], output["width"], output["height"]) == count_frames(video, job)


def test_a29_a_result_that_is_not_finite_is_no_picture(
    toy_folder: Path, toy: httpx.Client, video: httpx.Client
) -> None:
    outputs = toy_folder / "outputs"
    before = sorted(os.listdir(outputs))
    answer = toy.post(GENERATE, json={"prompt": "x", "inf_at_step": 3})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("non_finite_output", "server_error")
    assert "denoise" in error["message"]
    assert "step 3" in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert sorted(os.listdir(outputs)) == before
    assert make(toy)[0].shape == (64, 64, 3)
    job = ended(video, video.post(VIDEOS, json={"prompt": "x", "inf_at_step": 3}))
    assert (job["status"], job["error"]["code"]) == ("failed", "non_finite_output")
    assert (job["url"], job["outputs"]) == (None, [])


def test_out_of_memory_ends_one_request_with_a_plain_message(toy: httpx.Client) -> None:
    answer = toy.post(GENERATE, json={"prompt": "x", "oom_at_step": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "out_of_memory")
    message = answer.json()["error"]["message"]
    for words in ("20.00 GiB", "1.50 GiB is free", "smaller size", "--residency"):
        assert words in message
    assert make(toy)[0].shape == (64, 64, 3)
