"""Devices that are known by their device files alone: /dev/davinci0, /dev/mtgpu.0 and so on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sgld.platforms.probe import Device, Probe
from sgld.platforms.probes.files import hidden_by, numbered, visible


class Nodes(NamedTuple):
    """Device files of one kind.

    Args:
        label: what one device is called; its number follows.
        stem: a file's name under /dev without its number.
        variable: names the devices to use.
    """

    label: str
    stem: str
    variable: str


def probe_nodes(kind: Nodes, environ: Mapping[str, str] | None, root: Path) -> Probe:
    """The devices whose files this process may read and write, counted in the order of their files'
    numbers. Their memory is not told by files and reads 0.

    Args:
        kind: which files.
        environ: where `kind.variable` is looked up; None: of this process.
        root: where /dev is.
    """
    environ = os.environ if environ is None else environ
    files = numbered(root / "dev", re.escape(kind.stem) + r"(\d+)")
    if not files:
        file = f"/dev/{kind.stem}0"
        return Probe(False, f"no {kind.label} is there ({file} is not there)")
    numbers = [number for number, path in files if os.access(path, os.R_OK | os.W_OK)]
    if not numbers:
        return Probe(False, f"this process may open none of the {kind.label}s (/dev/{kind.stem}*)")
    devices = tuple(
        Device(index, f"{kind.label} {number}", 0, 0) for index, number in enumerate(numbers)
    )
    reason = hidden_by(environ, (kind.variable,))
    devices = visible(devices, environ.get(kind.variable))
    if reason or not devices:
        value = environ.get(kind.variable)
        return Probe(False, reason or f"{kind.variable}={value!r} leaves no device")
    return Probe(True, devices=devices)
