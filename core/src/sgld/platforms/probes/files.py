"""What the probes share: small files of the kernel, lists of visible devices, torch's build."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sgld.platforms.probe import Device


def text_of(path: Path) -> str:
    """A small file's text without white space around it; empty where it cannot be read."""
    with suppress(OSError, ValueError):
        return path.read_text(errors="replace").strip()
    return ""


def number_of(path: Path) -> int:
    """A file's whole number, decimal or 0x…; 0 where there is none."""
    with suppress(ValueError):
        return int(text_of(path), 0)
    return 0


def table_of(path: Path) -> dict[str, int]:
    """Lines `name number` of a file; other lines are passed over."""
    rows = (line.split() for line in text_of(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Entries of a folder whose whole name fits `pattern`, by the number that its group names."""
    found: list[tuple[int, Path]] = []
    with suppress(OSError):
        for path in folder.iterdir():
            match = re.fullmatch(pattern, path.name)
            if match:
                found.append((int(match[1]), path))
    return sorted(found)


class PciCard(NamedTuple):
    """A display card: its number, its folder under /sys/class/drm, its PCI device id."""

    number: int
    path: Path
    device_id: int


def pci_cards(root: Path, vendor: int) -> list[PciCard]:
    """Cards of a PCI vendor that a kernel driver has taken."""
    cards: list[PciCard] = []
    for number, path in numbered(root / "sys/class/drm", r"card(\d+)"):
        if number_of(path / "device/vendor") == vendor and (path / "device/driver").exists():
            cards.append(PciCard(number, path, number_of(path / "device/device")))
    return cards


def visible(devices: Sequence[Device], text: str | None) -> tuple[Device, ...]:
    """The devices that a variable such as `HIP_VISIBLE_DEVICES` leaves, in its order.

    Runtimes stop at the first number that is not there. A list that holds anything but numbers
    (UUIDs, tiles) is left for the runtime to sort out: all are given.
    """
    items = [item.strip() for item in (text or "").split(",")]
    if text is None or not all(re.fullmatch(r"-?\d+", item) for item in items):
        return tuple(devices)
    kept: list[Device] = []
    for item in items:
        if not 0 <= int(item) < len(devices):
            break
        kept.append(devices[int(item)])
    return tuple(kept)


def hidden_by(environ: Mapping[str, str], names: Iterable[str]) -> str:
    """Why a variable hides every device, or nothing. An empty one or `-1` does."""
    for name in names:
        if environ.get(name, "0").strip() in ("", "-1"):
            return f"{name}={environ[name]!r} hides every device"
    return ""


def torch_library(name: str) -> bool:
    """Whether the installed torch brings a library such as `torch_hip`; torch is not imported."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return False
    folders = spec.submodule_search_locations if spec is not None else None
    names = (f"lib{name}.so", f"{name}.dll", f"lib{name}.dylib")
    return any((Path(folder) / "lib" / file).exists() for folder in folders or () for file in names)
