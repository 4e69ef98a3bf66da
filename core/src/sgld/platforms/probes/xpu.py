"""Intel GPUs through the display drivers' files, /sys/class/drm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sgld.platforms.probe import Device, Probe
from sgld.platforms.probes.files import numbered, pci_cards, torch_library, visible

INTEL = 0x8086
MASK = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"


def probe_xpu(
    environ: Mapping[str, str] | None = None, *, root: Path = Path("/"), built: bool | None = None
) -> Probe:
    """XPU devices, if the installed torch is an XPU build.

    Nearly every Intel machine has a GPU beside the processor, so that without such a build there is
    nothing to use. Each tile of a card is a device, as Level Zero counts them, unless
    `ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE`. Memory is not told by these files and reads 0.

    Args:
        environ: `ZE_AFFINITY_MASK` names the devices to use.
        root: where /sys is.
        built: whether torch is an XPU build; None: look.
    """
    environ = os.environ if environ is None else environ
    cards = pci_cards(root, INTEL)
    if not cards:
        return Probe(False, "no Intel GPU with a driver is there (/sys/class/drm has none)")
    names: list[str] = []
    for card in cards:
        tiles = numbered(card.path / "device", r"tile(\d+)")
        apart = environ.get(HIERARCHY, "FLAT").upper() != "COMPOSITE"
        names += [f"Intel GPU 0x{card.device_id:04x}"] * (max(1, len(tiles)) if apart else 1)
    devices = tuple(Device(index, name, 0, 0) for index, name in enumerate(names))
    if not (torch_library("torch_xpu") if built is None else built):
        reason = f"{devices[0].name} is there, but the installed torch is not an XPU build"
        return Probe(False, reason, devices)
    # An empty mask masks nothing.
    devices = visible(devices, environ.get(MASK) or None)
    if not devices:
        return Probe(False, f"{MASK}={environ.get(MASK)!r} leaves no device")
    return Probe(True, devices=devices)
