"""Which addresses belong to the open internet, and how an allow-list is read."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.media.addresses import AllowedHost, is_public

CLOSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.9.9.9",
    "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1",
    "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1",
    "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b:1::1", "100::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "5f00::1",
    "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a00:1",
]  # fmt: skip
OPEN = [
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1",
    "169.253.0.1", "192.0.1.1", "223.255.255.255", "168.63.129.17", "::ffff:8.8.8.8",
    "64:ff9b::808:808", "2606:4700::1111", "2a00:1450::1", "2002:808:808::1",
]  # fmt: skip


@pytest.mark.parametrize("text", CLOSED)
def test_closed_addresses(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", OPEN)
def test_open_addresses(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@given(st.ip_addresses(v=4))
def test_embedded_addresses_are_judged_like_plain_ones(plain: ipaddress.IPv4Address) -> None:
    number = int(plain)
    for base in (0xFFFF << 32, 0x64FF9B << 96):
        assert is_public(ipaddress.IPv6Address(base | number)) == is_public(plain)


@given(st.ip_addresses())
def test_nothing_that_the_standard_library_calls_private_is_open(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(address):
        assert not address.is_private or getattr(address, "ipv4_mapped", None)
        assert not address.is_loopback
        assert not address.is_link_local
        assert not address.is_multicast
        assert not address.is_unspecified


@pytest.mark.parametrize(
    ("entry", "host", "address", "port", "opened"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", 80, True),
        ("127.0.0.1", "pictures.test", "127.0.0.1", 8080, True),
        ("127.0.0.1", "pictures.test", "127.0.0.2", 80, False),
        ("127.0.0.1:8000", "127.0.0.1", "127.0.0.1", 8000, True),
        ("127.0.0.1:8000", "127.0.0.1", "127.0.0.1", 8001, False),
        ("127.0.0.1", "x", "::ffff:127.0.0.1", 80, True),
        ("10.0.0.0/8", "a.test", "10.9.8.7", 443, True),
        ("10.0.0.0/8", "a.test", "11.0.0.1", 443, False),
        ("::1", "[::1]", "::1", 80, True),
        ("[::1]:80", "[::1]", "::1", 80, True),
        ("[::1]:80", "[::1]", "::1", 81, False),
        ("fd00::/8", "a.test", "fd12::1", 80, True),
        ("Store.Test", "store.test", "10.0.0.1", 80, True),
        ("store.test:9000", "store.test", "10.0.0.1", 9000, True),
        ("store.test:9000", "store.test", "10.0.0.1", 80, False),
        ("store.test", "a.store.test", "10.0.0.1", 80, False),
        ("store.test", "evilstore.test", "10.0.0.1", 80, False),
    ],
)
def test_allow_list(entry: str, host: str, address: str, port: int, opened: bool) -> None:
    assert AllowedHost.parse(entry).covers(host, ipaddress.ip_address(address), port) is opened


@pytest.mark.parametrize(
    "entry",
    ["", " ", "http://a.test", "a.test/", "a b", "a.test:0", "a.test:70000", "a.test:x", "[::1",
     "[store.test]:80", "10.0.0.1/8", "10.0.0.0/99", "*", "a..b", "-a", "user@a.test"],
)  # fmt: skip
def test_wrong_entries_are_refused(entry: str) -> None:
    with pytest.raises(ParameterError, match="allow_media_host"):
        AllowedHost.parse(entry)
