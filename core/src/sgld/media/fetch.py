"""Pictures from addresses that a client names, without becoming the client's arm into the network.

    data = await fetch_media(url, policy=FetchPolicy(), field="input_reference")

`http:`, `https:` and `data:` only. A host is resolved here, once for each hop; if any of its
addresses lies outside the open internet the fetch is refused before anything is sent, and the
connection is made to the very address that was checked. Redirects are followed here, each hop
checked alike. Size, time and number of hops are limited; compressed transfers are refused.
Proxies, cookies and credentials are never used.

A refusal is a `ParameterError` (`media_refused`, `media_too_large`); a host that does not deliver
is one too (`media_unreachable`): the caller chose the address.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

import httpx

from sgld.api.errors import ParameterError, Problem
from sgld.media.addresses import HOST_NAME, Address, AllowedHost, is_public

MAX_URL: Final = 8192
THREAD_BYTES: Final = 2**20
"""A data: URL above this is decoded outside the event loop."""
MAX_ADDRESSES: Final = 4
"""How many addresses of one host are tried."""
CONNECT_SECONDS: Final = 5.0
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
HEADERS: Final = {
    # A picture is compressed already; a compressed transfer could only be a bomb.
    "accept-encoding": "identity",
    "accept": "image/*,*/*;q=0.5",
    "user-agent": "sgld",
    "connection": "close",
}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_DATA = re.compile(r"data:([^,]*),", re.IGNORECASE)
_USER = re.compile(r"[^/?#]*//[^/?#]*@")
_ODD = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\]")


@dataclass(frozen=True)
class FetchPolicy:
    """What may be fetched.

    Args:
        allow_hosts: hosts, addresses or networks (each with or without `:port`) that may be
            fetched from although they are not on the open internet.
        max_bytes: size of one file.
        timeout: seconds for one file, redirects included.
        max_redirects: hops after the first.
    """

    allow_hosts: Sequence[str] = ()
    max_bytes: int = 50 * 2**20
    timeout: float = 20.0
    max_redirects: int = 5
    allowed: tuple[AllowedHost, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Read the allow-list; raises `ParameterError` for an entry that is no host."""
        allowed = tuple(AllowedHost.parse(text) for text in self.allow_hosts)
        object.__setattr__(self, "allowed", allowed)


class _Hop(NamedTuple):
    """One address to fetch from: the URL, its host in ASCII, its port."""

    url: httpx.URL
    host: str
    port: int


class _Refusal(Exception):
    """Why a URL is refused; becomes a `ParameterError` that names field and value."""

    def __init__(self, message: str, remedy: str = "", code: str = "media_refused") -> None:
        super().__init__(message)
        self.message, self.remedy, self.code = message, remedy, code


async def fetch_media(url: str, *, policy: FetchPolicy, field: str = "url") -> bytes:
    """The bytes behind an `http(s):` or `data:` URL, at most `policy.max_bytes`.

    Raises `ParameterError` naming `field`: `media_refused`, `media_too_large`, `media_unreachable`.
    """
    if url[:5].lower() == "data:":
        if len(url) > THREAD_BYTES:
            decode = functools.partial(decode_data_url, max_bytes=policy.max_bytes, field=field)
            return await asyncio.to_thread(decode, url)
        return decode_data_url(url, max_bytes=policy.max_bytes, field=field)
    try:
        async with asyncio.timeout(policy.timeout):
            return await _follow(url, policy)
    except TimeoutError:
        message = f"did not arrive within {policy.timeout:g} seconds."
        raise _problem(field, url, _unreachable(message)) from None
    except _Refusal as refusal:
        raise _problem(field, url, refusal) from None


def decode_data_url(url: str, *, max_bytes: int = 50 * 2**20, field: str = "url") -> bytes:
    """The bytes of a `data:` URL, base64 or percent-encoded; raises `ParameterError`."""
    try:
        found = _DATA.match(url)
        if found is None:
            raise _Refusal("is not a data: URL with a comma before its data.")
        base64_ = found[1].lower().rstrip().endswith(";base64")
        body = url[found.end() :]
        # At most 3 letters for 1 byte; base64 has 4 for 3 bytes, and each may be escaped.
        if len(body) > (max_bytes * 4 + 64 if base64_ else max_bytes * 3):
            raise _too_large(max_bytes)
        data = unquote_to_bytes(body.encode("utf-8", "replace"))
        if base64_:
            data = _from_base64(data)
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    except _Refusal as refusal:
        raise _problem(field, url, refusal) from None


def _from_base64(data: bytes) -> bytes:
    data = data.translate(None, b" \t\r\n").rstrip(b"=")
    try:
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except binascii.Error as error:
        raise _Refusal(f"is not valid base64: {error}.") from error


def _too_large(limit: int) -> _Refusal:
    return _Refusal(f"is larger than the {limit} bytes allowed.", code="media_too_large")


def _unreachable(message: str) -> _Refusal:
    return _Refusal(message, "Check the address, or upload the file.", "media_unreachable")


def _problem(field: str, url: str, refusal: _Refusal) -> ParameterError:
    """The error for people; a data: URL is cut to its head, credentials are not repeated."""
    shown = url.encode("ascii", "replace").decode()
    shown = shown.partition(",")[0] + ",…" if _DATA.match(shown) else shown
    shown = re.sub(r"//[^/@]*@", "//…@", shown)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    return ParameterError([Problem(field, shown, refusal.message, refusal.remedy, refusal.code)])


async def _follow(url: str, policy: FetchPolicy) -> bytes:
    """Fetch `url` through its redirects, each hop checked before anything is sent to it."""
    for _ in range(policy.max_redirects + 1):
        hop = read_url(url)
        addresses = await _checked(hop, policy)
        got = await _get(hop, addresses, policy)
        if isinstance(got, bytes):
            return got
        url = _joined(hop, got)
    raise _unreachable(f"redirects more than {policy.max_redirects} times.")


def _joined(hop: _Hop, location: str) -> str:
    if _SCHEME.match(location):
        return location
    try:
        return str(hop.url.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise _unreachable("redirects to something that is not a URL.") from error


def read_url(url: str) -> _Hop:
    """Take a URL apart strictly: what could be read in two ways is refused."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise _Refusal(
            "is not a URL; files of the server are not read.", "Upload it, or give a URL."
        )
    if scheme[1].lower() not in ("http", "https"):
        raise _Refusal(f"{scheme[1][:20]}: is not fetched.", "Use http, https or data.")
    if len(url) > MAX_URL or _ODD.search(url):
        raise _Refusal(
            f"must be at most {MAX_URL} ASCII characters without blanks and backslashes.",
            "Percent-encode the path and write the host in its xn-- form.",
        )
    try:
        parsed = httpx.URL(url)
        port = {"http": 80, "https": 443}[parsed.scheme] if parsed.port is None else parsed.port
    except (httpx.InvalidURL, ValueError) as error:
        raise _Refusal("is not a valid URL.") from error
    if parsed.userinfo or _USER.match(url):
        raise _Refusal("must not carry a user name or password.")
    host = parsed.raw_host.decode("ascii").lower()
    literal = _literal(host)
    last = host.rpartition(".")[2]
    number = last.isdecimal() or re.fullmatch(r"0x[0-9a-f]*", last)
    if not 0 < port < 65536:
        raise _Refusal("has a port that does not exist.")
    if literal is None and (number or not HOST_NAME.fullmatch(host)):
        raise _Refusal(
            f"{host[:60]!r} is not a host name, nor an IP address in its usual spelling."
        )
    return _Hop(parsed.copy_with(fragment=None), host, port)


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


async def resolve_host(host: str, port: int) -> list[str]:
    """Every address of a host name, from the system's resolver, in a thread."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _checked(hop: _Hop, policy: FetchPolicy) -> list[Address]:
    """The addresses to connect to; refused if any of them must not be reached."""
    literal = _literal(hop.host)
    if literal is None:
        try:
            texts = await resolve_host(hop.host, hop.port)
            addresses = [ipaddress.ip_address(text) for text in texts]
        except (OSError, UnicodeError, ValueError) as error:
            raise _unreachable("has a host that cannot be resolved.") from error
    else:
        addresses = [literal]
    for address in addresses:
        opened = any(entry.covers(hop.host, address, hop.port) for entry in policy.allowed)
        scoped = getattr(address, "scope_id", None) is not None
        if not opened and (scoped or not is_public(address)):
            raise _Refusal(
                "leads to an address that is not on the open internet.",
                "Upload the file; the operator can open a host with --allow-media-host.",
            )
    if not addresses:
        raise _unreachable("has a host without an address.")
    return addresses[:MAX_ADDRESSES]


async def _get(hop: _Hop, addresses: Sequence[Address], policy: FetchPolicy) -> bytes | str:
    """The body of a 200, or the target of a redirect, from the first address that answers."""
    secure = hop.url.scheme == "https"
    verify = await asyncio.to_thread(_certificates) if secure else False
    # The bare transport: no cookies, no proxies, no redirects of its own.
    async with httpx.AsyncHTTPTransport(verify=verify, trust_env=False) as transport:
        for address in addresses:
            request = _request(hop, address, policy)
            try:
                answer = await transport.handle_async_request(request)
                try:
                    return await _read_answer(answer, policy)
                finally:
                    await answer.aclose()
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise _unreachable(f"broke off ({type(error).__name__}).") from error
    raise _unreachable("has a host that takes no connection.")


def _request(hop: _Hop, address: Address, policy: FetchPolicy) -> httpx.Request:
    """A request to `address`: the host's own name goes into Host, SNI and certificate check."""
    timeout = httpx.Timeout(policy.timeout, connect=CONNECT_SECONDS)
    return httpx.Request(
        "GET",
        hop.url.copy_with(host=str(address)),
        headers={"host": hop.url.netloc.decode("ascii"), **HEADERS},
        extensions={"sni_hostname": hop.host, "timeout": timeout.as_dict()},
    )


async def _read_answer(answer: httpx.Response, policy: FetchPolicy) -> bytes | str:
    if answer.status_code in REDIRECTS and "location" in answer.headers:
        return answer.headers["location"]
    if answer.status_code != 200:
        raise _unreachable(f"answers with status {answer.status_code}.")
    if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise _Refusal("comes compressed, which is not taken.")
    length = answer.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > policy.max_bytes:
        raise _too_large(policy.max_bytes)
    data = bytearray()
    async for chunk in answer.aiter_raw():
        data += chunk
        if len(data) > policy.max_bytes:
            raise _too_large(policy.max_bytes)
    return bytes(data)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The authorities to trust; made once, because reading them takes tens of milliseconds."""
    return httpx.create_ssl_context()
