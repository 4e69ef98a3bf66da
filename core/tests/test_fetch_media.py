"""Fetching what a client names: real listeners count what reaches them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.media import fetch
from sgld.media.fetch import FetchPolicy, decode_data_url, fetch_media

Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
LOCAL = FetchPolicy(allow_hosts=("127.0.0.1",), timeout=5.0, max_bytes=1000)


class Site:
    """A listener that keeps the head of every request."""

    def __init__(self, replies: dict[str, Reply]) -> None:
        self.replies, self.heads, self.connections, self.port = replies, [], 0, 0
        self.tasks: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        try:
            await self.reply(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            reply = self.replies.get(head.split(" ")[1], answer(b"", "404 Not Found"))
            if isinstance(reply, bytes):
                writer.write(reply)
                await writer.drain()
            else:
                await reply(writer)

    def url(self, path: str = "/x.png", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@contextlib.asynccontextmanager
async def site(
    replies: dict[str, Reply], host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    made = Site(replies)
    server = await asyncio.start_server(made.serve, host, 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()
        for task in made.tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, made.tasks), return_exceptions=True)


async def code_of(url: str, policy: FetchPolicy) -> str:
    """The error code of a fetch that must fail."""
    with pytest.raises(ParameterError) as caught:
        await fetch_media(url, policy=policy, field="image")
    assert caught.value.problems[0].field == "image"
    assert len(str(caught.value)) < 500
    return caught.value.code


@pytest.mark.parametrize(
    "spelling",
    ["127.0.0.1", "0x7f000001", "2130706433", "127.1", "0177.0.0.1", "0x7f.1", "localhost",
     "LOCALHOST", "localhost.", "127.0.0.1.", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0",
     "0", "user:secret@127.0.0.1", "@127.0.0.1", "1.1.1.1@127.0.0.1", "127%2e0.0.1", "①②⑦.0.0.1",
     "ⓛocalhost", "127.0.0.1\\", "[64:ff9b::7f00:1]", "[::]", "[fe80::1%25lo]"],
)  # fmt: skip
def test_loopback_in_any_spelling_is_refused_before_anything_is_sent(spelling: str) -> None:
    async def run() -> None:
        async with site({"/x.png": answer(b"secret")}) as local:
            code = await code_of(f"http://{spelling}:{local.port}/x.png", FetchPolicy(timeout=3))
            assert code == "media_refused"
            assert local.connections == 0

    asyncio.run(run())


def test_loopback_of_ipv6_is_refused() -> None:
    async def run() -> None:
        try:
            async with site({"/x.png": answer(b"secret")}, "::1") as local:
                url = f"http://[::1]:{local.port}/x.png"
                assert await code_of(url, FetchPolicy()) == "media_refused"
                assert local.connections == 0
                policy = FetchPolicy(allow_hosts=("::1",))
                assert await fetch_media(url, policy=policy) == b"secret"
                assert f"host: [::1]:{local.port}" in local.heads[0].lower()
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")

    asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    ["file:///etc/hostname", "/etc/hostname", "etc/hostname", "../../x.png", "", "x", "//a.test/x",
     "ftp://a.test/x.png", "gopher://a.test/", "javascript:alert(1)", "http:", "http:/x", "http://",
     "http:///x", "https://", "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/x",
     "http://[fd00:ec2::254]/", "http://a.test:0/", "http://a.test:99999/", "http://a.test:x/",
     "http://a b/", "http://a.test/\r\nX: y", "http://a.test/\0", "http://" + "a" * 9000,
     "http://a..b/", "http://[::1", "\ud800http://a.test", "http://\ud800/", "blob:http://a/b",
     "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAf"],
)  # fmt: skip
def test_what_is_not_fetched(url: str) -> None:
    assert asyncio.run(code_of(url, FetchPolicy(timeout=3))) == "media_refused"


def test_an_allow_listed_host_works_and_keeps_its_name() -> None:
    async def run() -> None:
        async with site({"/x.png?a=1": answer(b"picture")}) as local:
            assert await fetch_media(local.url("/x.png?a=1#part"), policy=LOCAL) == b"picture"
            head = local.heads[0].lower()
            assert f"host: 127.0.0.1:{local.port}\r\n" in head
            assert "accept-encoding: identity" in head
            assert "cookie" not in head
            assert "authorization" not in head

    asyncio.run(run())


def test_a_host_is_resolved_once_and_the_checked_address_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    monkeypatch.setattr(fetch, "resolve_host", resolve)

    async def run() -> None:
        async with site({"/x.png": answer(b"picture")}) as local:
            url = local.url(host="pictures.test")
            policy = FetchPolicy(allow_hosts=(f"pictures.test:{local.port}",))
            assert await fetch_media(url, policy=policy) == b"picture"
            assert f"host: pictures.test:{local.port}" in local.heads[0].lower()
            assert asked == ["pictures.test"]
            assert await code_of(local.url(host="other.test"), policy) == "media_refused"
            assert local.connections == 1

    asyncio.run(run())


def test_one_private_address_among_public_ones_is_enough_to_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "2606:4700::1111", "10.0.0.1"]

    async def never(*_: object) -> httpx.Response:
        raise AssertionError("sent something")

    monkeypatch.setattr(fetch, "resolve_host", resolve)
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", never)
    assert asyncio.run(code_of("http://a.test/x", FetchPolicy())) == "media_refused"


def test_rebinding_between_hops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is public at first; at the redirect to itself it has become loopback."""
    answers = iter([["1.1.1.1"], ["127.0.0.1"]])
    sent: list[httpx.Request] = []

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    async def handle(_: object, request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(302, headers={"location": "/again"})

    monkeypatch.setattr(fetch, "resolve_host", resolve)
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    assert asyncio.run(code_of("https://rebind.test/x", FetchPolicy())) == "media_refused"
    assert [(str(r.url), r.headers["host"], r.extensions["sni_hostname"]) for r in sent] == [
        ("https://1.1.1.1/x", "rebind.test", "rebind.test")
    ]


@pytest.mark.parametrize(
    ("target", "code"),
    [("http://169.254.169.254/", "media_refused"), ("file:///etc/hostname", "media_refused"),
     ("data:,x", "media_refused"), ("http://u:p@1.1.1.1/", "media_refused"),
     ("http://[::1]/", "media_refused"), ("http://[", "media_refused"),
     ("//[", "media_refused"), ("//169.254.169.254/x", "media_refused")],
)  # fmt: skip
def test_a_redirect_is_checked_like_the_first_address(target: str, code: str) -> None:
    async def run() -> None:
        reply = answer(b"", "302 Found", Location=target)
        async with site({"/x.png": reply}) as local:
            assert await code_of(local.url(), LOCAL) == code
            assert local.connections == 1

    asyncio.run(run())


def test_a_redirect_from_an_open_port_to_a_closed_one_is_refused() -> None:
    async def run() -> None:
        async with site({"/secret": answer(b"secret")}) as inner:
            reply = answer(b"", "307 Temporary Redirect", Location=inner.url("/secret"))
            async with site({"/x.png": reply}) as outer:
                policy = FetchPolicy(allow_hosts=(f"127.0.0.1:{outer.port}",))
                assert await code_of(outer.url(), policy) == "media_refused"
                assert (outer.connections, inner.connections) == (1, 0)

    asyncio.run(run())


def test_redirects_are_followed_and_counted() -> None:
    async def run() -> None:
        hops: dict[str, Reply] = {
            f"/{i}": answer(b"", "302 Found", Location=f"{i - 1}") for i in range(1, 9)
        }
        async with site({**hops, "/0": answer(b"end")}) as local:
            assert await fetch_media(local.url("/5"), policy=LOCAL) == b"end"
            assert local.connections == 6
            assert await code_of(local.url("/6"), LOCAL) == "media_unreachable"
            assert local.connections == 12

    asyncio.run(run())


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"100\r\n" + b"x" * 256 + b"\r\n")
        await writer.drain()


async def _slow(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
    for _ in range(900):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.1)


async def _silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(20)


async def _cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\nonly this")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (answer(b"x" * 1001), "media_too_large"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "media_too_large"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000, "media_too_large"),
        (_endless, "media_too_large"),
        (answer(gzip.compress(b"0" * 10**6)[:900], Content_Encoding="gzip"), "media_refused"),
        (answer(b"x", Content_Encoding="br"), "media_refused"),
        (answer(b"", "404 Not Found"), "media_unreachable"),
        (answer(b"", "500 Oops"), "media_unreachable"),
        (answer(b"", "204 No Content"), "media_unreachable"),
        (answer(b"", "302 Found"), "media_unreachable"),
        (b"not HTTP at all\r\n\r\n", "media_unreachable"),
        (_cut, "media_unreachable"),
    ],
)
def test_what_a_host_may_answer(reply: Reply, code: str) -> None:
    async def run() -> None:
        async with site({"/x.png": reply}) as local:
            assert await code_of(local.url(), LOCAL) == code

    asyncio.run(run())


@pytest.mark.parametrize("reply", [_slow, _silent])
def test_time_is_limited_as_a_whole(reply: Reply) -> None:
    """A body that trickles in never meets a read time-out, only the limit on the whole."""

    async def run() -> None:
        async with site({"/x.png": reply}) as local:
            policy = FetchPolicy(allow_hosts=("127.0.0.1",), timeout=0.5)
            begin = time.monotonic()
            assert await code_of(local.url(), policy) == "media_unreachable"
            assert time.monotonic() - begin < 3

    asyncio.run(run())


def test_a_closed_port_and_an_unknown_host_are_unreachable() -> None:
    async def run() -> None:
        async with site({}) as local:
            pass
        assert await code_of(local.url(), LOCAL) == "media_unreachable"

    asyncio.run(run())


def test_an_unknown_host_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    monkeypatch.setattr(fetch, "resolve_host", resolve)
    assert asyncio.run(code_of("http://nowhere.test/", FetchPolicy())) == "media_unreachable"


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with site({}) as proxy, site({"/x.png": answer(b"picture")}) as local:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url(""))
            monkeypatch.delenv("no_proxy", raising=False)
            assert await fetch_media(local.url(), policy=LOCAL) == b"picture"
            assert proxy.connections == 0

    asyncio.run(run())


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for `name`, signed by itself, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    import datetime

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


def test_the_certificate_is_checked_against_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = _certificate(tmp_path, "pictures.test")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    asked: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: asked.append(name)
    trusting = ssl.create_default_context(cafile=str(cert))
    monkeypatch.setattr(fetch, "_certificates", lambda: trusting)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(fetch, "resolve_host", resolve)

    async def run() -> None:
        async with site({"/x.png": answer(b"picture")}, context=serving) as local:
            right = local.url(host="pictures.test", scheme="https")
            wrong = local.url(host="other.test", scheme="https")
            assert await fetch_media(right, policy=LOCAL) == b"picture"
            assert await code_of(wrong, LOCAL) == "media_unreachable"
            assert asked == ["pictures.test", "other.test"]
            assert len(local.heads) == 1

    asyncio.run(run())


PIXEL = base64.b64encode(b"picture").decode()


@pytest.mark.parametrize(
    ("url", "data"),
    [
        (f"data:image/png;base64,{PIXEL}", b"picture"),
        (f"DATA:image/png;BASE64,{PIXEL}", b"picture"),
        (f"data:;base64,{PIXEL.rstrip('=')}", b"picture"),
        (f"data:image/png;charset=x;base64,{PIXEL[:4]}\n {PIXEL[4:]}", b"picture"),
        (f"data:image/png;base64,{PIXEL.replace('=', '%3D')}", b"picture"),
        ("data:,a%20b", b"a b"),
        ("data:text/plain,%FF%00", b"\xff\x00"),
        ("data:image/png;base64,", b""),
    ],
)
def test_data_urls(url: str, data: bytes) -> None:
    assert asyncio.run(fetch_media(url, policy=FetchPolicy(max_bytes=7))) == data


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png;base64,####", "media_refused"),
        ("data:image/png;base64,A", "media_refused"),
        ("data:image/png;base64", "media_refused"),
        ("data:", "media_refused"),
        ("data:," + "x" * 8, "media_too_large"),
        ("data:;base64," + base64.b64encode(b"x" * 8).decode(), "media_too_large"),
        ("data:;base64," + "A" * 3_000_000, "media_too_large"),
    ],
)
def test_wrong_data_urls(url: str, code: str) -> None:
    assert asyncio.run(code_of(url, FetchPolicy(max_bytes=7))) == code


@given(st.text(max_size=60))
def test_any_text_after_data_is_bytes_or_refused(text: str) -> None:
    with contextlib.suppress(ParameterError):
        assert isinstance(decode_data_url("data:" + text), bytes)


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "http://127.0.0.1"]))
def test_reading_a_url_never_fails_in_another_way(text: str, front: str) -> None:
    with contextlib.suppress(fetch._Refusal):
        hop = fetch.read_url(front + text)
        assert hop.host
        assert 0 < hop.port < 65536
