"""AMD GPUs through the compute driver's topology, the files of /sys/class/kfd."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from sgld.platforms.generations import GPU_ABILITIES, rocm_dtypes
from sgld.platforms.probe import Device, Probe
from sgld.platforms.probes.files import (
    hidden_by,
    numbered,
    table_of,
    text_of,
    torch_library,
    visible,
)

DRIVER = "ROCR_VISIBLE_DEVICES"
HIP = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""HIP reads the first of them that is set; the second is there for programs made for CUDA."""
DEVICE_MEMORY = (1, 2)
"""Heap types of the driver that are the device's own memory: all of it, or what the host sees."""


def probe_rocm(
    environ: Mapping[str, str] | None = None, *, root: Path = Path("/"), built: bool | None = None
) -> Probe:
    """ROCm devices, if the installed torch is a ROCm build.

    Args:
        environ: `ROCR_VISIBLE_DEVICES` is applied first, then `HIP_VISIBLE_DEVICES`, or
            `CUDA_VISIBLE_DEVICES` where that is not set, to what it leaves ("GPU isolation
            techniques", rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
        root: where /sys and /dev are.
        built: whether torch is a ROCm build; None: look.
    """
    environ = os.environ if environ is None else environ
    nodes = numbered(root / "sys/class/kfd/kfd/topology/nodes", r"(\d+)")
    if not nodes:
        return Probe(False, "no AMD compute driver is loaded (/sys/class/kfd is not there)")
    found = (_device(path, root) for _, path in nodes)
    devices = tuple(
        device._replace(index=index) for index, device in enumerate(row for row in found if row)
    )
    if not devices:
        return Probe(False, "the AMD compute driver lists no GPU that this process may open")
    if not (torch_library("torch_hip") if built is None else built):
        reason = f"{devices[0].name} is there, but the installed torch is not a ROCm build"
        return Probe(False, reason, devices)
    variables = (DRIVER, next((name for name in HIP if name in environ), HIP[0]))
    reason = hidden_by(environ, variables)
    for name in variables:
        devices = visible(devices, environ.get(name))
    if reason or not devices:
        return Probe(False, reason or f"{' and '.join(variables)} leave no device")
    return Probe(True, devices=devices)


def _device(node: Path, root: Path) -> Device | None:
    properties = table_of(node / "properties")
    version = properties.get("gfx_target_version", 0)
    if not (properties.get("simd_count") and version):
        return None  # a processor
    # A container sees every node, but only the render devices that were given to it.
    file = root / f"dev/dri/renderD{properties.get('drm_render_minor', 0)}"
    if not os.access(file, os.R_OK | os.W_OK):
        return None
    banks = (table_of(path / "properties") for _, path in numbered(node / "mem_banks", r"(\d+)"))
    memory = sum(
        bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in DEVICE_MEMORY
    )
    name = text_of(node / "name") or gfx_of_arch(version)
    return Device(0, name, version, memory, rocm_dtypes(version), GPU_ABILITIES)


def gfx_of_arch(arch: int) -> str:
    """The compiler's name of an architecture number: gfx942 for 90402."""
    major, rest = divmod(arch, 10000)
    minor, step = divmod(rest, 100)
    return f"gfx{major}{minor:x}{step:x}"


def arch_of_gfx(name: str) -> int:
    """The driver's number of an architecture: 90402 for `gfx942:sramecc+:xnack-`, 90010 for gfx90a;
    0 for anything else. The last two digits of the name are hexadecimal."""
    match = re.match(r"gfx(\d+)([0-9a-f])([0-9a-f])(?![0-9a-z])", name)
    if match is None:
        return 0
    return 10000 * int(match[1]) + 100 * int(match[2], 16) + int(match[3], 16)
