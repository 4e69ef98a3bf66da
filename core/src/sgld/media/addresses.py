"""Which network addresses a server may be sent to: the open internet, and what is allow-listed.

* `is_public(address)`: whether an IP address belongs to the open internet.
* `AllowedHost.parse(text)`: one entry of an allow-list: a host name, an IP address or a network,
  with or without a port.

Everything is decided on the address that is then connected to, never on a name alone.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from sgld.api.errors import ParameterError, Problem

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# From the IANA special-purpose registries. Written out, because what the standard library calls
# global differs between releases of Python.
CLOSED_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT, and a cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's metadata and agent at a public address
        "169.254.0.0/16",  # link-local, most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, a cloud's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT relays
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
CLOSED_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
MAPPED: Final = IPv6Network("::ffff:0:0/96")
SIX_TO_FOUR: Final = IPv6Network("2002::/16")
NAT64: Final = IPv6Network("64:ff9b::/96")
# The last 64 bits of an ISATAP address carry an IPv4 address behind one of these.
ISATAP: Final = (0x00005EFE, 0x02005EFE)

_BRACKETED = re.compile(r"\[([^\[\]]+)\](?::([0-9]{1,5}))?")
_NAMED = re.compile(r"([^\[\]:/]+)(?::([0-9]{1,5}))?")
HOST_NAME: Final = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
"""A host name in ASCII and lower case, without a trailing dot."""


def is_public(address: Address) -> bool:
    """Whether `address` is on the open internet; an IPv4 address inside an IPv6 one counts too."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in CLOSED_V4)
    number = int(address)
    if address in MAPPED or address in NAT64:
        return is_public(IPv4Address(number & 0xFFFFFFFF))
    if address not in GLOBAL_UNICAST or any(address in network for network in CLOSED_V6):
        return False
    if address in SIX_TO_FOUR and not is_public(IPv4Address(number >> 80 & 0xFFFFFFFF)):
        return False
    if number >> 32 & 0xFFFFFFFF in ISATAP:
        return is_public(IPv4Address(number & 0xFFFFFFFF))
    return True


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry of an allow-list; exactly one of `name` and `network` is set, `port` 0 is any."""

    name: str = ""
    network: Network | None = None
    port: int = 0

    @classmethod
    def parse(cls, text: str, field: str = "allow_media_host") -> AllowedHost:
        """Read `name`, `name:port`, `1.2.3.4:port`, `10.0.0.0/8`, `::1`, `[::1]:port`.

        Raises `ParameterError` for anything else.
        """
        word = text.strip().lower()
        network = _network(word)
        if network is not None:
            return cls(network=network)
        found = _BRACKETED.fullmatch(word) or _NAMED.fullmatch(word)
        port = int(found[2] or 0) if found else 0
        if found and port < 65536 and not (found[2] and port == 0):
            network = _network(found[1])
            if network is not None:
                return cls(network=network, port=port)
            if word[0] != "[" and HOST_NAME.fullmatch(found[1]):
                return cls(name=found[1], port=port)
        remedy = "Write a host name, an IP address or a network such as 10.0.0.0/8."
        raise ParameterError([Problem(field, text, "is not a host.", remedy)])

    def covers(self, host: str, address: Address, port: int) -> bool:
        """Whether this entry opens `address`, which `host` stands for, at `port`."""
        if self.port not in (0, port):
            return False
        if self.network is None:
            return self.name == host
        plain = unmapped(address)
        return plain.version == self.network.version and plain in self.network


def unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped IPv6 address means; any other as it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _network(word: str) -> Network | None:
    try:
        return ipaddress.ip_network(word)
    except ValueError:
        return None
