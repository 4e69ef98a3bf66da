"""The image API on real families: OpenAI's own client and plain HTTP against tiny checkpoints."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
from openai import OpenAI
from openai.types import ImagesResponse
from PIL import Image

from sgld.server.answers import CompletedImage, PartialImage, Pictures
from sgld.testing.served import Served, served_here, wait_for

GENERATE = "/v1/images/generations"
EDIT = "/v1/images/edits"
FLUX1, FLUX2, SANA, SPRINT = "flux.1-schnell", "flux.2-klein", "sana", "sana-sprint"
SIZES = {FLUX1: (64, 64), FLUX2: (64, 64), SANA: (128, 96), SPRINT: (128, 96)}
"""Model → width and height that a request without a size gets."""
ALL = pytest.mark.parametrize("model", SIZES)
EDITORS = pytest.mark.parametrize("model", [FLUX1, FLUX2])

Start = Callable[[str], Served]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Gives the server of a model; each is started when the first test asks."""
    running: dict[str, Served] = {}
    with ExitStack() as stack:

        def one(model: str) -> Served:
            if model not in running:
                server = served_here(f"tiny:{model}", tmp_path_factory.mktemp("served"))
                running[model] = stack.enter_context(server)
            return running[model]

        yield one


@pytest.fixture
def connect(start: Start) -> Iterator[Callable[[str], tuple[OpenAI, httpx.Client]]]:
    """Gives OpenAI's client and a plain one for a model."""
    with ExitStack() as stack:

        def one(model: str) -> tuple[OpenAI, httpx.Client]:
            server = start(model)
            web = httpx.Client(base_url=server.url, trust_env=False, timeout=60)
            stack.enter_context(web)
            client = OpenAI(base_url=server.api, api_key="-", http_client=web, max_retries=0)
            return client, web

        yield one


Connect = Callable[[str], tuple[OpenAI, httpx.Client]]


def png(colour: Any = "red", width: int = 64, height: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


def decoded(data: str) -> tuple[str | None, npt.NDArray[np.uint8]]:
    """Format and pixels of a file in base64."""
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return image.format, np.asarray(image.convert("RGB"))


def pictures(answer: ImagesResponse) -> list[npt.NDArray[np.uint8]]:
    return [decoded(item.b64_json or "")[1] for item in answer.data or []]


def refused(answer: httpx.Response, param: str, *words: str, code: str = "") -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert not code or error["code"] == code
    for word in words:
        assert word in error["message"], error


def size_of(picture: npt.NDArray[np.uint8]) -> tuple[int, int]:
    return picture.shape[1], picture.shape[0]


def steps_done(web: httpx.Client) -> float:
    lines = web.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sgld_steps_total{"))


# Generations -------------------------------------------------------------------------------------


@ALL
def test_sizes_and_numbers(connect: Connect, model: str) -> None:
    client, web = connect(model)
    plain = client.images.generate(model=model, prompt="a lamp", response_format="b64_json")
    assert [size_of(one) for one in pictures(plain)] == [SIZES[model]]
    two = client.images.generate(
        prompt="a lamp", n=2, size="auto", quality="auto", response_format="b64_json",
        extra_body={"seed": 4},
    )  # fmt: skip
    made = pictures(two)
    assert [size_of(one) for one in made] == [SIZES[model]] * 2
    assert (made[0] != made[1]).any()
    other = client.images.generate(
        prompt="a lamp",
        size="96x64",
        quality="high",
        response_format="b64_json",  # pyright: ignore
    )
    assert [size_of(one) for one in pictures(other)] == [(96, 64)]
    refused(web.post(GENERATE, json={"prompt": "x", "size": "90x64"}), "size", "90x64")
    answer = web.post(GENERATE, json={"prompt": "x", "size": "96x64"})
    Pictures.model_validate_json(answer.text)
    address = answer.json()["data"][0]["url"]
    with Image.open(io.BytesIO(httpx.get(address, trust_env=False).content)) as image:
        assert image.size == (96, 64)


@pytest.mark.parametrize("model", [FLUX1, SANA])
@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_formats(connect: Connect, model: str, kind: Any) -> None:
    client, _ = connect(model)
    given: dict[str, Any] = {"prompt": "x", "output_format": kind, "response_format": "b64_json"}
    seed = {"seed": 1}
    low, high = (
        client.images.generate(**given, output_compression=quality, extra_body=seed)
        for quality in (5, 95)
    )
    assert low.output_format == kind
    files = [(answer.data or [])[0].b64_json or "" for answer in (low, high)]
    assert [decoded(file)[0] for file in files] == [kind.upper()] * 2
    if kind == "png":  # exact at every quality
        assert np.array_equal(decoded(files[0])[1], decoded(files[1])[1])
    else:
        assert len(files[0]) < len(files[1])


@ALL
def test_what_no_family_can_do(connect: Connect, model: str) -> None:
    client, web = connect(model)
    with pytest.raises(openai.BadRequestError) as error:
        client.images.generate(prompt="x", background="transparent")
    assert (error.value.param, error.value.code) == ("background", "unsupported_parameter")
    assert client.images.generate(prompt="x", background="opaque").data
    refused(web.post(GENERATE, json={"prompt": "x", "num_frames": 9}), "num_frames", "not clips")
    refused(web.post(GENERATE, json={"prompt": "x", "image": "data:,"}), "image", EDIT)
    refused(web.post(GENERATE, json={"prompt": "x", "n": 11}), "n", "from 1 to 10")


def test_a07_guidance_reaches_the_sampler(connect: Connect) -> None:
    client, web = connect(SANA)

    def made(scale: float, **more: Any) -> bytes:
        extra = {"seed": 3, "guidance_scale": scale, "num_inference_steps": 4, **more}
        answer = client.images.generate(prompt="x", response_format="b64_json", extra_body=extra)
        return pictures(answer)[0].tobytes()

    off = made(1.0)
    assert made(1.0, negative_prompt="blur") == off
    blur, empty = made(5.0, negative_prompt="blur"), made(5.0, negative_prompt="")
    assert len({off, blur, empty}) == 3
    for model, field in ((FLUX1, "guidance_scale"), (FLUX2, "negative_prompt")):
        body = {"prompt": "x", field: 4 if field == "guidance_scale" else "blur"}
        refused(connect(model)[1].post(GENERATE, json=body), field)
    refused(web.post(GENERATE, json={"prompt": "x", "true_cfg_scale": 2}), "true_cfg_scale")


# Edits -------------------------------------------------------------------------------------------


@EDITORS
def test_edits(connect: Connect, model: str) -> None:
    client, _ = connect(model)
    given: dict[str, Any] = {"prompt": "a kite", "response_format": "b64_json"}
    seed = {"seed": 1}
    one = pictures(client.images.edit(image=("a.png", png()), extra_body=seed, **given))
    again = pictures(client.images.edit(image=[png()], extra_body=seed, **given))
    other = pictures(client.images.edit(image=png("blue"), extra_body=seed, **given))
    assert np.array_equal(one[0], again[0])
    assert (one[0] != other[0]).any()
    wide = client.images.edit(image=png("red", 96, 64), n=2, **given)
    assert [size_of(made) for made in pictures(wide)] == [size_of(pictures(wide)[0])] * 2
    assert pictures(wide)[0].shape[1] > pictures(wide)[0].shape[0]
    sized = client.images.edit(image=png(), size="64x96", **given)  # pyright: ignore
    assert [size_of(made) for made in pictures(sized)] == [(64, 96)]


def test_several_references(connect: Connect) -> None:
    client, web = connect(FLUX2)
    given: dict[str, Any] = {"prompt": "a kite", "response_format": "b64_json", "n": 1}
    colours = ["red", "blue", "green"]
    one, two, swapped = (
        pictures(
            client.images.edit(
                image=[png(colours[index]) for index in order], extra_body={"seed": 1}, **given
            )
        )[0]
        for order in ((0,), (0, 1), (1, 0))
    )
    assert (one != two).any()
    assert (two != swapped).any()
    ten = client.images.edit(image=[png()] * 10, **given)
    assert len(pictures(ten)) == 1
    before = steps_done(web)
    for body in (
        {"files": [("image[]", (f"{index}.png", png())) for index in range(11)],
         "data": {"prompt": "x"}},
        # Counted before any of them is looked at, and these could not be fetched.
        {"json": {"prompt": "x", "images": [f"http://127.0.0.1:1/{i}.png" for i in range(11)]}},
    ):  # fmt: skip
        refused(web.post(EDIT, **body), "image", "11 pictures", "takes 10")
    with pytest.raises(openai.BadRequestError) as error:
        client.images.edit(image=[png()] * 11, prompt="x")
    assert error.value.param == "image"
    refused(web.post(EDIT, files={"image": png("red", 32, 32)}, data={"prompt": "x"}), "image")
    assert steps_done(web) == before


def test_one_picture_where_the_family_takes_one(connect: Connect) -> None:
    _, web = connect(FLUX1)
    files = [("image[]", ("a.png", png())), ("image[]", ("b.png", png()))]
    refused(web.post(EDIT, files=files, data={"prompt": "x"}), "image", "2 pictures", "takes 1")


def test_strength(connect: Connect) -> None:
    client, web = connect(FLUX1)
    given: dict[str, Any] = {"prompt": "a kite", "response_format": "b64_json"}

    def made(colour: str, **more: Any) -> npt.NDArray[np.int64]:
        extra = {"seed": 1, "num_inference_steps": 8, **more}
        answer = client.images.edit(image=png(colour), extra_body=extra, **given)
        return pictures(answer)[0].astype(int)

    # The more is repainted, the less it matters what was there.
    weak, strong = (
        np.abs(made("red", strength=share) - made("blue", strength=share)).mean()
        for share in (0.25, 1.0)
    )
    assert strong == 0
    assert weak > 0
    for wrong in (0, 1.5, "much"):
        body = {"prompt": "x", "strength": wrong, "image": _data_url()}
        refused(web.post(EDIT, json=body), "strength", "finite number up to 1")
    answer = web.post(EDIT, json={"prompt": "x", "image": _data_url(), "strength": 0.5})
    assert answer.json()["parameters"]["strength"] == 0.5


def _data_url() -> str:
    return "data:image/png;base64," + base64.b64encode(png()).decode()


@EDITORS
def test_a_mask_is_refused(connect: Connect, model: str) -> None:
    client, web = connect(model)
    before = steps_done(web)
    with pytest.raises(openai.BadRequestError) as error:
        client.images.edit(image=png(), mask=png("white"), prompt="x")
    assert (error.value.param, error.value.code) == ("mask", "unsupported_parameter")
    body = {"prompt": "x", "image": _data_url(), "mask": _data_url()}
    refused(web.post(EDIT, json=body), "mask", "whole picture", code="unsupported_parameter")
    assert steps_done(web) == before
    schema = web.get("/openapi.json").json()["paths"][EDIT]["post"]["requestBody"]["content"]
    for media in schema.values():
        assert "mask" not in media["schema"]["properties"]


@pytest.mark.parametrize("model", [SANA, SPRINT])
def test_a_family_without_pictures_says_so(connect: Connect, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        connect(model)[0].images.edit(image=png(), prompt="x")
    assert error.value.code == "unsupported_task"
    assert GENERATE in error.value.message


# Streams -----------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("count", [0, 1, 3])
def test_openai_streams_generations(connect: Connect, model: str, count: int) -> None:
    client, _ = connect(model)
    steps = 2 if model == SPRINT else 4
    extra = {"seed": 6, "num_inference_steps": steps}
    events = list(
        client.images.generate(prompt="a lamp", stream=True, partial_images=count, extra_body=extra)
    )
    *partial, last = events
    kinds = ["image_generation.partial_image"] * min(count, steps - 1)
    assert [event.type for event in events] == [*kinds, "image_generation.completed"]
    shown: list[npt.NDArray[np.uint8]] = []
    for index, event in enumerate(partial):
        assert event.type == "image_generation.partial_image"
        assert event.partial_image_index == index
        assert event.size == "x".join(map(str, SIZES[model]))
        assert (event.output_format, event.background, event.quality) == ("png", "opaque", "auto")
        shown.append(decoded(event.b64_json)[1])
    assert last.type == "image_generation.completed"
    assert last.usage.total_tokens == 0
    final = decoded(last.b64_json)[1]
    assert [size_of(one) for one in (*shown, final)] == [SIZES[model]] * len(events)
    distances = [np.abs(one.astype(int) - final).mean() for one in shown]
    # What comes last is nearest to the result, and nothing is the result itself.
    assert not distances or min(distances) == distances[-1] > 0
    # Watching changes nothing.
    plain = client.images.generate(prompt="a lamp", response_format="b64_json", extra_body=extra)
    assert np.array_equal(pictures(plain)[0], final)


@EDITORS
def test_openai_streams_edits(connect: Connect, model: str) -> None:
    client, _ = connect(model)
    extra = {"seed": 6, "strength": 1.0} if model == FLUX1 else {"seed": 6}
    events = list(
        client.images.edit(
            image=png(), prompt="a kite", stream=True, partial_images=2, output_format="jpeg",
            extra_body=extra,
        )
    )  # fmt: skip
    kinds = ["image_edit.partial_image"] * 2 + ["image_edit.completed"]
    assert [event.type for event in events] == kinds
    assert [decoded(event.b64_json)[0] for event in events] == ["JPEG"] * 3


def lines(web: httpx.Client, route: str, **given: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream, name and data."""
    with web.stream("POST", route, **given) as answer:
        answer.read()
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found: list[tuple[str, dict[str, Any]]] = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_the_form_of_the_events(connect: Connect) -> None:
    _, web = connect(FLUX1)
    body = {"prompt": "x", "stream": True, "partial_images": 2, "seed": 9}
    found = lines(web, GENERATE, json=body)
    for name, data in found[:-1]:
        assert name == data["type"]
        PartialImage.model_validate(data)
    name, last = found[-1]
    done = CompletedImage.model_validate(last)
    assert name == done.type
    assert (done.seed, done.parameters["seeds"], done.warnings) == (9, [9], [])
    assert web.get(f"/v1/images/{done.id}/content").content == base64.b64decode(done.b64_json)
    form = {"prompt": "x", "stream": "true", "partial_images": "1"}
    found = lines(web, EDIT, data=form, files={"image": png()})
    assert [name for name, _ in found] == ["image_edit.partial_image", "image_edit.completed"]


def test_what_is_wrong_with_a_stream_is_a_plain_error(connect: Connect) -> None:
    client, web = connect(FLUX1)
    body = {"prompt": "x", "stream": True}
    refused(web.post(GENERATE, json={**body, "n": 2}), "n", "only one")
    refused(web.post(GENERATE, json={**body, "partial_images": 4}), "partial_images", "0 to 3")
    refused(web.post(GENERATE, json={**body, "response_format": "url"}), "response_format")
    with pytest.raises(openai.BadRequestError) as error:
        client.images.generate(prompt="", stream=True)
    assert error.value.param == "prompt"


# Many at once, and clients that leave ------------------------------------------------------------


def test_a11_eight_at_once_get_what_each_asked_for(connect: Connect) -> None:
    client, _ = connect(FLUX1)

    def ask(index: int) -> npt.NDArray[np.uint8]:
        given: dict[str, Any] = {"prompt": f"prompt {index}", "extra_body": {"seed": index}}
        if index % 4 == 3:
            *_, last = client.images.generate(stream=True, partial_images=2, **given)
            return decoded(last.b64_json)[1]
        given["response_format"] = "b64_json"
        if index % 2:
            return pictures(client.images.edit(image=png((index * 30, 9, 9)), **given))[0]
        return pictures(client.images.generate(**given))[0]

    solo = [ask(index) for index in range(8)]
    assert len({array.tobytes() for array in solo}) == 8
    barrier = threading.Barrier(8)

    def together(index: int) -> npt.NDArray[np.uint8]:
        barrier.wait()
        return ask(index)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(together, range(8)))
    for alone, answer in zip(solo, answers, strict=True):
        # Those that share a forward may round differently.
        assert np.abs(alone.astype(int) - answer).max() <= 1


@pytest.mark.parametrize("stream", [False, True])
def test_a13_a_client_that_leaves_takes_its_work_along(connect: Connect, stream: bool) -> None:
    client, web = connect(FLUX2)
    client.images.generate(prompt="x")  # what is slow the first time is no part of this
    long = {"prompt": "long", "num_inference_steps": 1000, "size": "256x256"}
    if stream:
        body = {**long, "stream": True, "partial_images": 3}
        with web.stream("POST", GENERATE, json=body) as answer:
            before = steps_done(web)
            wait_for(lambda: steps_done(web) >= before + 2, "its steps", 20)
            assert answer.status_code == 200
    else:
        with pytest.raises(httpx.ReadTimeout):
            web.post(GENERATE, json=long, timeout=0.5)
    begin = time.monotonic()
    assert web.get("/health").status_code == 200
    assert client.images.generate(prompt="x", extra_body={"num_inference_steps": 2}).data
    wait_for(lambda: web.get("/server_info").json()["running"] == 0, "its end", 10)
    assert time.monotonic() - begin < 10
    steps = steps_done(web)
    time.sleep(0.3)
    assert steps_done(web) == steps


def test_a18_the_client_of_openai_understands_every_error(connect: Connect) -> None:
    client, web = connect(FLUX2)
    answer = client.images.generate(prompt="a lamp")
    assert answer.data
    assert web.get(answer.data[0].url or "").status_code == 200
    for given, kind, param in (
        ({"response_format": "xml"}, openai.BadRequestError, "response_format"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"size": "1x1"}, openai.BadRequestError, "size"),
        ({"extra_body": {"stepz": 1}}, openai.BadRequestError, "stepz"),
    ):
        with pytest.raises(kind) as error:
            client.images.generate(**{"prompt": "x", **given})
        assert error.value.param == param
        assert error.value.code
        assert error.value.type == "invalid_request_error"
    assert [model.id for model in client.models.list()] == [FLUX2]
