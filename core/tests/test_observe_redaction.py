"""Secrets do not reach a log, whatever form they come in, and ordinary text is left alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.observe.redaction import HIDDEN, Redactor, is_secret, printable

SECRET = "Zq8vT2mX9kLp4RwN"

LEAKS = [
    f"Authorization: Bearer {SECRET}",
    f"{{'authorization': 'Bearer {SECRET}', 'accept': 'x'}}",
    f'"Authorization": "Token {SECRET}"',
    f"authorization: Basic {SECRET}==",
    f"sent bearer {SECRET} along",
    f"https://s3.example/bucket/a.mp4?X-Amz-Algorithm=x&X-Amz-Signature={SECRET}&a=b",
    f"https://s3.example/a?X-Amz-Credential={SECRET}%2F2026&X-Amz-Expires=60",
    f"https://s3.example/a?AWSAccessKeyId=A&Signature={SECRET}",
    f"https://s3.example/a?x-amz-security-token={SECRET}",
    f'GET /v1/videos?api_key={SECRET} HTTP/1.1" 200',
    f"GET /v1/videos?limit=1&token={SECRET}",
    f"postgresql://sgld:{SECRET}@db.example/jobs is away",
    f"postgresql+psycopg://sgld:{SECRET}@db.example:5432/jobs",
    f"x-api-key: {SECRET}",
    f"SGLD_API_KEY={SECRET}",
    f"SGLD_S3_SECRET_ACCESS_KEY={SECRET}",
    f"aws_secret_access_key = '{SECRET}'",
    f'{{"password": "{SECRET}"}}',
    f"Cookie: session={SECRET}; other=1",
    f"key sk-{SECRET} was refused",
    f"hf_{SECRET} has no access",
]

PLAIN = [
    "a red kite over the sea, key light from the left",
    "a basic shape; the bearer of news",
    "stored key=video_1/0.mp4 bytes=12",
    "shared forward failed: tokens=512 batch_tokens=4096",
    "the secret garden, password forgotten",
    "https://example.com/a.png?width=12&height=7",
    "http://127.0.0.1:8000/v1/videos",
    "user@example.com wrote http://example.com/",
    "Signature: none of our business",
    "sk-short and hf_short",
]


@pytest.mark.parametrize("text", LEAKS)
def test_text_loses_its_secrets(text: str) -> None:
    shown = Redactor().text(text)
    assert SECRET not in shown
    assert HIDDEN in shown
    assert Redactor().text(shown) == shown, "hiding twice changes nothing"


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_what_surrounds_a_secret_stays() -> None:
    url = f"https://s3.example/a.mp4?X-Amz-Expires=60&X-Amz-Signature={SECRET}&x=1"
    assert Redactor().text(url) == (
        f"https://s3.example/a.mp4?X-Amz-Expires=60&X-Amz-Signature={HIDDEN}&x=1"
    )
    assert Redactor().text(f"postgresql://sgld:{SECRET}@db/jobs") == (
        f"postgresql://sgld:{HIDDEN}@db/jobs"
    )


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("authorization", True),
        ("Proxy-Authorization", True),
        ("api_key", True),
        ("api_keys", True),
        ("X-API-Key", True),
        ("hf_token", True),
        ("secret_access_key", True),
        ("access_key_id", True),
        ("password", True),
        ("Set-Cookie", True),
        ("X-Amz-Signature", True),
        ("key", False),
        ("memo_key", False),
        ("tokens", False),
        ("tokenizer", False),
        ("prompt", False),
        ("secretary", False),
        ("signature_count", False),
    ],
)
def test_names(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_nested_values() -> None:
    given_value = {
        "headers": {"Authorization": SECRET, "Accept": "x"},
        "api_keys": [SECRET, SECRET],
        "list": [f"Bearer {SECRET}", 3, None, True, 1.5],
        "token": 512,
        "password": "",
        "data": b"12345",
        "object": ValueError(f"Bearer {SECRET}"),
    }
    shown = Redactor().value(given_value)
    assert SECRET not in repr(shown)
    assert shown["headers"] == {"Authorization": HIDDEN, "Accept": "x"}
    assert shown["list"][1:] == [3, None, True, 1.5]
    assert shown["token"] == 512
    assert shown["password"] == ""
    assert shown["data"] == "[5 bytes]"
    assert given_value["headers"]["Authorization"] == SECRET, "the caller's value is its own"


def test_nesting_without_end() -> None:
    loop: dict[str, object] = {"password": SECRET}
    loop["again"] = loop
    assert "again" in repr(Redactor().value(loop))


def test_given_secrets_are_hidden_anywhere() -> None:
    redactor = Redactor(["horse-battery", "horse", "ab", ""])
    assert redactor.text("the horse-battery, a horse and ab") == (
        f"the {HIDDEN}, a {HIDDEN} and ab"
    )


def test_a_picture_is_shown_by_its_length() -> None:
    text = "image data:image/png;base64," + "iVBORw0KGgo" * 1000 + " end"
    assert Redactor().text(text) == "image data:image/png;base64,[11000 characters] end"


@given(st.text())
def test_any_text_passes(text: str) -> None:
    shown = Redactor(["horse-battery"]).text(text)
    assert isinstance(shown, str)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 100_000,
        "data:" * 40_000,
        "data:" + ";a" * 100_000 + "base64,",
        "bearer " * 30_000,
        "bearer" + " " * 200_000,
        "password" + " " * 200_000,
        "?key" * 50_000,
        "http://" * 30_000,
        "http://a:" + "b" * 200_000,
        "authorization:" * 15_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_costs_little(text: str) -> None:
    begin = time.process_time()
    Redactor().text(text)
    assert time.process_time() - begin < 2


@given(st.text())
def test_printable_is_one_line_and_steers_no_terminal(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    shown.encode("utf-8")


def test_printable_keeps_what_can_be_read() -> None:
    assert printable("naïve 猫\x1b[31m\nx\ud800") == "naïve 猫\\u001b[31m\\nx\\ud800"
