"""Moore Threads GPUs through their device files, /dev/mtgpu.0 and on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sgld.platforms.probe import Device, Probe
from sgld.platforms.probes.files import hidden_by, numbered, visible

VARIABLE = "MUSA_VISIBLE_DEVICES"


def probe_musa(environ: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Probe:
    """MUSA devices that this process may open. Their memory is not told by files and reads 0.

    Args:
        environ: `MUSA_VISIBLE_DEVICES` names the devices to use.
        root: where /dev is.
    """
    environ = os.environ if environ is None else environ
    files = numbered(root / "dev", r"mtgpu\.(\d+)")
    if not files:
        return Probe(False, "no Moore Threads GPU is there (/dev/mtgpu.0 is not there)")
    devices = tuple(
        Device(index, f"Moore Threads GPU {number}", 0, 0)
        for index, (number, _) in enumerate(files)
    )
    reason = hidden_by(environ, (VARIABLE,))
    devices = visible(devices, environ.get(VARIABLE))
    if reason or not devices:
        return Probe(False, reason or f"{VARIABLE}={environ.get(VARIABLE)!r} leaves no device")
    return Probe(True, devices=devices)
