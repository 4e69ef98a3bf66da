"""Request bodies: JSON and forms mean the same, and whatever is wrong with one is the caller's."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import SgldError
from sgld.server.bodies import (
    Body,
    Limits,
    make_body,
    read_edit_body,
    read_image_body,
    read_video_body,
)
from sgld.server.errors import install_error_handlers
from sgld.server.json_text import parse_json

LIMITS = Limits(
    max_body_bytes=20_000, body_seconds=0.5, max_parts=20, max_field_bytes=2000, max_inputs=3
)
READERS = {"image": read_image_body, "edit": read_edit_body, "video": read_video_body}
DATA = "data:image/png;base64,AAAA"


def make_app(seen: list[Body]) -> FastAPI:
    app = FastAPI()

    @app.post("/{kind}")
    async def take(kind: str, request: Request) -> None:
        seen.append(await READERS[kind](request, LIMITS))

    install_error_handlers(app)
    return app


def send(kind: str, **options: Any) -> tuple[httpx.Response, Body | None]:
    async def run() -> tuple[httpx.Response, Body | None]:
        seen: list[Body] = []
        transport = httpx.ASGITransport(make_app(seen))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post(f"/{kind}", **options)
            return answer, seen[0] if seen else None

    return asyncio.run(run())


def read(kind: str, **options: Any) -> Body:
    answer, body = send(kind, **options)
    assert body is not None, answer.text
    return body


def form(*parts: tuple[str, Any]) -> dict[str, Any]:
    """A form of fields and files, in order; a text is a field, a tuple a file."""
    made = [(n, v if isinstance(v, tuple) else (None, v)) for n, v in parts]
    return {"files": made}


JSON = {"content-type": "application/json"}
WRONG_JSON: list[tuple[bytes, str, str | None]] = [
    (b"", "invalid_json", None),
    (b"{", "invalid_json", None),
    (b"not json", "invalid_json", None),
    (b"[]", "invalid_json", None),
    (b"null", "invalid_json", None),
    (b'"text"', "invalid_json", None),
    (b"3", "invalid_json", None),
    (b"{}{}", "invalid_json", None),
    (b'{"a": NaN}', "invalid_json", None),
    (b'{"a": Infinity}', "invalid_json", None),
    (b'{"a": -Infinity}', "invalid_json", None),
    (b'{"a": 1e999}', "invalid_json", None),
    (b'{"a": ' + b"9" * 5000 + b"}", "invalid_json", None),
    (b'{"a": "\xff"}', "invalid_json", None),
    (b"\xff\xfe{\x00}\x00", "invalid_json", None),
    (b"[" * 9000, "invalid_json", None),
    (b'{"prompt": "a", "seed": 1, "prompt": "b"}', "duplicate_parameter", "prompt"),
    (b'{"a": {"b": 1, "b": 1}}', "duplicate_parameter", "b"),
    (b'{"prompt": "\\ud800"}', "invalid_parameter", "prompt"),
    (b'{"prompt": "a\\u0000b"}', "invalid_parameter", "prompt"),
    (b'{"\\ud800": 1}', "unknown_parameter", "?"),
    (b'{"' + b"x" * 200 + b'": 1}', "unknown_parameter", "x" * 100),
    (json.dumps({f"f{i}": i for i in range(21)}).encode(), "invalid_json", None),
    (b'{"extra_body": 3}', "invalid_parameter", "extra_body"),
    (b'{"extra_body": "["}', "invalid_json", "extra_body"),
    (b'{"extra_body": "3"}', "invalid_parameter", "extra_body"),
    (b'{"extra_body": {"extra_json": {}}}', "invalid_parameter", "extra_body.extra_json"),
    (b'{"extra_body": {"seed": 1}, "extra_json": {"seed": 2}}', "duplicate_parameter", "seed"),
    (b'{"seed": ' + b"[" * 40 + b"]" * 40 + b"}", "invalid_request", "seed"),
]


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("content", "code", "param"), WRONG_JSON)
def test_wrong_json(kind: str, content: bytes, code: str, param: str | None) -> None:
    answer, body = send(kind, content=content, headers=JSON)
    assert body is None
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)


@pytest.mark.parametrize(
    ("headers", "content", "status", "code"),
    [
        ({}, b"{}", 415, "unsupported_media_type"),
        ({"content-type": "text/plain"}, b"{}", 415, "unsupported_media_type"),
        ({"content-type": "application/x-www-form-urlencoded"}, b"prompt=a", 415,
         "unsupported_media_type"),
        ({"content-type": ";;;"}, b"{}", 415, "unsupported_media_type"),
        ({**JSON, "content-encoding": "gzip"}, b"{}", 415, "unsupported_media_type"),
        ({"content-type": "application/json; charset=utf-16"}, b"{}", 400, "invalid_json"),
        (JSON, b'{"prompt": "' + b"x" * 2001 + b'"}', 413, "body_too_large"),
        (JSON, b'{"prompt": "' + b"x" * 20_000 + b'"}', 413, "body_too_large"),
        ({"content-type": "multipart/form-data"}, b"--x--", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary="}, b"--x--", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=" + "x" * 300}, b"", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"nonsense", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"},
         b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb', 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"},
         b"--x\r\n\r\nb\r\n--x--\r\n", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"},
         b"--x\r\nContent-Disposition: form-data\r\n\r\nb\r\n--x--\r\n", 400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"},
         b'--x\r\nContent-Disposition: form-data; name="a"\r\nX: ' + b"y" * 9000 + b"\r\n\r\n",
         400, "invalid_form"),
        ({"content-type": "multipart/form-data; boundary=x"},
         b'--x\r\nContent-Disposition: form-data; name="a"\r\n'
         b"Content-Transfer-Encoding: base64\r\n\r\nAAAA\r\n--x--\r\n", 400, "invalid_form"),
    ],
)  # fmt: skip
def test_wrong_headers_and_broken_forms(
    headers: dict[str, str], content: bytes, status: int, code: str
) -> None:
    answer, _ = send("edit", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_body_that_is_too_long_is_not_read_to_its_end() -> None:
    sent = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b"x" * 1000

    answer, _ = send("image", content=parts(), headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data; boundary=x"])
def test_a_body_that_does_not_arrive_is_given_up(content_type: str) -> None:
    async def run() -> int:
        answers: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(30)
            raise AssertionError

        async def keep(message: Any) -> None:
            answers.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/image", "raw_path": b"/image",
            "headers": [(b"content-type", content_type.encode())], "query_string": b"",
            "scheme": "http", "server": ("test", 80), "client": ("test", 1),
            "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await make_app([])(scope, receive, keep)
        return answers[0]["status"]

    assert asyncio.run(run()) == 408


def test_json_may_have_a_byte_order_mark_and_a_charset() -> None:
    headers = {"content-type": "application/json; charset=UTF-8"}
    body = read("image", content=b'\xef\xbb\xbf{"prompt": "\xc3\xa9", "n": 2}', headers=headers)
    assert body.fields == {"prompt": "é", "n": 2}
    assert body.texts == frozenset()


@pytest.mark.parametrize("container", ["extra_body", "extra_json", "extra_params", "extra_args"])
@pytest.mark.parametrize("as_text", [False, True])
def test_containers_are_emptied_and_the_top_wins(container: str, as_text: bool) -> None:
    inner: Any = {"seed": 1, "n": 2, "size": "64x64", "steps": None}
    value = {"n": 3, "size": None, container: json.dumps(inner) if as_text else inner}
    body = read("video", json=value)
    assert body.fields == {"n": 3, "size": "64x64", "seed": 1, "steps": None}


def test_containers_that_agree_are_fine() -> None:
    body = read("image", json={"extra_body": {"seed": 1}, "extra_json": '{"seed": 1}'})
    assert body.fields == {"seed": 1}


def test_a_container_in_a_form_keeps_its_types() -> None:
    body = read("video", **form(("n", "2"), ("extra_params", '{"seed": 7, "n": 9}')))
    assert body.fields == {"n": "2", "seed": 7}
    assert body.texts == {"n"}


def test_fields_of_a_form() -> None:
    body = read(
        "video",
        **form(
            ("prompt", "é\n"), ("seed[]", "1"), ("seed[]", "2"), ("svg[model]", "m"),
            ("svg[reasoning][effort]", "low"), ("negative_prompt", ""),
        ),
    )  # fmt: skip
    assert body.fields == {
        "prompt": "é\n",
        "seed": ["1", "2"],
        "svg": {"model": "m", "reasoning": {"effort": "low"}},
        "negative_prompt": "",
    }
    assert body.texts == body.fields.keys()


@pytest.mark.parametrize(
    ("parts", "code", "param"),
    [
        ((("n", "1"), ("n", "2")), "duplicate_parameter", "n"),
        ((("n", "1"), ("n[]", "2")), "duplicate_parameter", "n"),
        ((("n[]", "1"), ("n", "2")), "duplicate_parameter", "n"),
        ((("n[a]", "1"), ("n[a]", "2")), "duplicate_parameter", "n"),
        ((("n[a]", "1"), ("n[a][b]", "2")), "duplicate_parameter", "n"),
        ((("n[a]", "1"), ("n[]", "2")), "duplicate_parameter", "n"),
        ((("[]", "1"),), "invalid_form", "[]"),
        ((("n[", "1"),), "invalid_form", "n["),
        ((("n[a][b][c][d][e]", "1"),), "invalid_form", "n[a][b][c][d][e]"),
        ((("prompt", b"\xff"),), "invalid_form", "prompt"),
        ((("prompt", "a\0b"),), "invalid_parameter", "prompt"),
        (tuple((f"f{i}", "1") for i in range(21)), "invalid_form", None),
        ((("prompt", ("a.txt", b"a", "text/plain")),), "unknown_parameter", "prompt"),
        ((("imge", ("a.png", b"a", "image/png")),), "unknown_parameter", "imge"),
        ((("mask", ("a.png", b"a")), ("mask", ("b.png", b"b"))), "invalid_parameter", "mask"),
        ((("mask", ("a.png", b"a")), ("mask", DATA)), "invalid_parameter", "mask"),
        ((("mask", "http://a.test/x"),), "invalid_parameter", "mask"),
        ((("image[a]", ("a.png", b"a")),), "invalid_form", "image"),
        (tuple(("image", (f"{i}.png", b"a")) for i in range(4)), "invalid_parameter", "image"),
    ],
)
def test_wrong_forms(parts: tuple[tuple[str, Any], ...], code: str, param: str | None) -> None:
    answer, _ = send("edit", **form(*parts))
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)


def test_a_field_of_a_form_is_limited_but_not_a_picture() -> None:
    answer, _ = send("video", **form(("prompt", "x" * 2001)))
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "prompt"
    large = DATA + "A" * 4000
    body = read(
        "video", **form(("reference_url", large), ("input_reference", ("a.png", b"x" * 4000)))
    )
    assert body.urls == [("reference_url", large)]
    assert len(body.files["input_reference"][0].data) == 4000


@pytest.mark.parametrize(
    "name",
    ["../../escape.png", "..\\..\\escape.png", "/abs/escape.png", "", "x" * 300, "CON", "a\0b.png",
     "é.png", 'a"b.png', "a;b=c.png"],
)  # fmt: skip
def test_file_names_are_only_what_the_client_claims(name: str) -> None:
    shown = name.encode("utf-8").replace(b'"', b"%22")
    content = (
        b'--x\r\nContent-Disposition: form-data; name="image"; filename="' + shown + b'"\r\n'
        b"Content-Type: image/png\r\n\r\npixels\r\n--x--\r\n"
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer, body = send("edit", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    assert body is not None
    (upload,) = body.files["image"]
    assert upload.data == b"pixels"
    assert upload.field == "image"


def test_an_empty_file_input_of_a_browser_counts_as_not_given() -> None:
    content = (
        b'--x\r\nContent-Disposition: form-data; name="image"; filename=""\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\r\n--x--\r\n"
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}
    body = read("edit", content=content, headers=headers)
    assert body.inputs == 0


PNG = ("a.png", b"a", "image/png")


@pytest.mark.parametrize(
    ("kind", "options", "files", "urls"),
    [
        ("edit", form(("image", PNG)), {"image": 1}, []),
        ("edit", form(("image", PNG), ("image", PNG)), {"image": 2}, []),
        ("edit", form(("image[]", PNG), ("image[]", PNG)), {"image": 2}, []),
        ("edit", form(("image[0]", PNG), ("image[1]", PNG)), {"image": 2}, []),
        ("edit", form(("url", "http://a"), ("url", "http://b")), {},
         [("url", "http://a"), ("url", "http://b")]),
        ("edit", form(("url[]", "http://a"), ("image[]", PNG)), {"image": 1},
         [("url", "http://a")]),
        ("edit", form(("image", DATA)), {}, [("image", DATA)]),
        ("edit", form(("images[][image_url]", DATA)), {}, [("images", DATA)]),
        ("edit", {"json": {"image": DATA}}, {}, [("image", DATA)]),
        ("edit", {"json": {"image": [DATA, {"image_url": "http://a"}]}}, {},
         [("image", DATA), ("image", "http://a")]),
        ("edit", {"json": {"images": [{"image_url": {"url": "http://a"}}]}}, {},
         [("images", "http://a")]),
        ("edit", {"json": {"image": None, "url": []}}, {}, []),
        ("video", form(("input_reference", PNG)), {"input_reference": 1}, []),
        ("video", form(("input_reference", "http://a")), {}, [("input_reference", "http://a")]),
        ("video", form(("input_reference[image_url]", DATA)), {}, [("input_reference", DATA)]),
        ("video", {"json": {"input_reference": {"image_url": DATA}}}, {},
         [("input_reference", DATA)]),
        ("video", {"json": {"reference_url": "http://a"}}, {}, [("reference_url", "http://a")]),
    ],
)  # fmt: skip
def test_where_pictures_come_in(
    kind: str, options: dict[str, Any], files: dict[str, int], urls: list[tuple[str, str]]
) -> None:
    body = read(kind, **options)
    assert {name: len(held) for name, held in body.files.items()} == files
    assert body.urls == urls
    assert body.fields == {}


@pytest.mark.parametrize(
    ("kind", "value", "param"),
    [
        ("edit", {"image": 3}, "image"),
        ("edit", {"image": True}, "image"),
        ("edit", {"image": {}}, "image"),
        ("edit", {"image": {"image_url": 3}}, "image"),
        ("edit", {"image": {"image_url": "http://a", "path": "/etc"}}, "image"),
        ("edit", {"images": [{"file_id": "f"}]}, "images.file_id"),
        ("edit", {"image": [DATA] * 4}, "image"),
        ("video", {"input_reference": {"file_id": "f"}}, "input_reference.file_id"),
        ("video", {"input_reference": 3}, "input_reference"),
    ],
)
def test_wrong_pictures(kind: str, value: dict[str, Any], param: str) -> None:
    answer, _ = send(kind, json=value)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_the_openai_client_is_understood() -> None:
    """Its real requests, with files, lists, objects, nulls and extra bodies."""
    openai = pytest.importorskip("openai")
    import httpx2

    seen: list[Body] = []

    async def run() -> None:
        app = FastAPI()

        @app.post("/images/generations")
        async def image(request: Request) -> dict[str, Any]:
            seen.append(await read_image_body(request, LIMITS))
            return {"created": 1, "data": []}

        @app.post("/images/edits")
        async def edit(request: Request) -> dict[str, Any]:
            seen.append(await read_edit_body(request, LIMITS))
            return {"created": 1, "data": []}

        @app.post("/videos")
        async def video(request: Request) -> dict[str, Any]:
            seen.append(await read_video_body(request, LIMITS))
            return {"id": "v", "object": "video"}

        install_error_handlers(app)
        transport = httpx2.ASGITransport(app)
        async with openai.AsyncOpenAI(
            api_key="x", base_url="http://test", max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        ) as client:  # fmt: skip
            await client.images.generate(
                model="m", prompt="a lamp", n=2, extra_body={"seed": 3, "x": {"y": 1}}
            )
            await client.images.edit(
                model="m", prompt="p", image=[io.BytesIO(b"one"), ("../b.png", b"two")],
                mask=b"m", size=None, extra_body={"seed": [1, 2], "guidance_scale": 2.5},
            )  # fmt: skip
            await client.images.edit(prompt="p", image=b"one", n=1)
            await client.videos.create(
                prompt="p", seconds="4", size="1280x720", input_reference=("a.png", b"abc")
            )
            await client.videos.create(
                prompt="p",
                extra_body={"num_frames": 9, "on": True, "input_reference": {"image_url": DATA}},
            )

    asyncio.run(run())
    generation, two, one, upload, extra = seen
    assert generation.fields == {
        "model": "m", "prompt": "a lamp", "n": 2, "seed": 3, "x": {"y": 1},
    }  # fmt: skip
    assert [file.data for file in two.files["image"]] == [b"one", b"two"]
    assert two.mask == b"m"
    assert two.fields["seed"] == ["1", "2"]
    assert two.fields["guidance_scale"] == "2.5"
    assert [file.data for file in one.files["image"]] == [b"one"]
    assert upload.files["input_reference"][0].data == b"abc"
    assert upload.fields == {"prompt": "p", "seconds": "4", "size": "1280x720"}
    assert extra.urls == [("input_reference", DATA)]
    assert extra.fields == {"prompt": "p", "num_frames": "9", "on": "true"}


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["prompt", "image", "images", "url", "mask", "input_reference", "reference_url", "extra_body",
     "extra_json", "seed"]
) | st.text(max_size=8)  # fmt: skip


@given(st.sampled_from(list(READERS)), st.dictionaries(NAMES, JSONS, max_size=6), st.booleans())
def test_any_json_is_a_body_or_refused(kind: Any, value: dict[str, Any], text: bool) -> None:
    try:
        body = make_body(kind, value, {}, LIMITS, form=text)
    except SgldError:
        return
    assert body.texts <= body.fields.keys()
    assert not {"extra_body", "extra_json", "extra_params", "extra_args"} & body.fields.keys()


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    code = ""
    try:
        parse_json(data)
    except SgldError as error:
        code = error.code
    assert code in ("", "invalid_json", "duplicate_parameter")


FRAGMENTS = st.sampled_from(
    [b"--x", b"--x--", b"\r\n", b"\r\n\r\n", b"\n", b": ", b"Content-Disposition: form-data",
     b'; name="a"', b'; name="image[]"', b'; filename="', b'"', b"; filename*=utf-8''%00%zz",
     b"Content-Type: text/plain; charset=utf-7", b"\0\xff", b"value", b"--"]
)  # fmt: skip


@given(st.lists(FRAGMENTS | st.binary(max_size=4), max_size=14))
def test_any_form_is_a_body_or_refused(fragments: list[bytes]) -> None:
    from sgld.server.forms import FormReader, sort_parts

    start = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    for front in (b"", start):
        status = 200
        try:
            reader = FormReader("multipart/form-data; boundary=x", LIMITS)
            for piece in [front, *fragments]:
                reader.feed(piece)
            sort_parts(reader.finish(), ("image",))
        except SgldError as error:
            status = getattr(error, "status", 400)
        assert status in (200, 400, 413)
