"""Ask whether a device is there, without torch: called before anything heavy is imported.

Public: `Probe`, `Device`, `probe_cpu()`, `probe_cuda()`. A probe answers with devices or with a
reason, in a few milliseconds; it opens no context on the device.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sgld.platforms.generations import CPU_DTYPES, GPU_ABILITIES, cuda_dtypes

GIB: Final = 1024**3


class Device(NamedTuple):
    """One device: its index as the driver counts, name, architecture number and bytes of memory
    (0 where there is none or the probe cannot tell).

    `dtypes` and `abilities` are those of `DeviceFacts`; empty where only the opened device knows.
    """

    index: int
    name: str
    arch: int
    memory: int
    dtypes: frozenset[str] = frozenset()
    abilities: frozenset[str] = frozenset()


class Probe(NamedTuple):
    """`available` with `devices`, or the reason why not, in words for the user.

    Devices that stand beside a reason are there and cannot be used, for want of another build of
    torch: whoever ends up on the CPU then hears of them.
    """

    available: bool
    reason: str = ""
    devices: tuple[Device, ...] = ()


def probe_cpu() -> Probe:
    """The CPU is always there; its memory is the machine's."""
    return Probe(True, devices=(Device(0, "cpu", 0, host_memory(), CPU_DTYPES),))


def host_memory() -> int:
    """Bytes of the machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def probe_cuda(environ: Mapping[str, str] | None = None) -> Probe:
    """CUDA devices through the driver's management library, which opens no context.

    Respects `CUDA_VISIBLE_DEVICES`: an empty list or `-1` hides them all; only plain numbers are
    matched here, other spellings (UUIDs) are left for CUDA itself to sort out.
    """
    environ = os.environ if environ is None else environ
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return Probe(False, f"CUDA_VISIBLE_DEVICES={visible!r} hides every device")
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return Probe(False, "no NVIDIA driver is installed (libnvidia-ml.so.1 is not there)")
    code = library.nvmlInit_v2()
    if code:
        return Probe(False, f"the NVIDIA driver does not answer (nvmlInit gives {code})")
    try:
        devices = tuple(_read_device(library, index) for index in range(_count(library)))
    finally:
        library.nvmlShutdown()
    devices = _visible(devices, visible)
    if not devices:
        return Probe(False, "the NVIDIA driver lists no device")
    return Probe(True, devices=devices)


def _visible(devices: tuple[Device, ...], visible: str | None) -> tuple[Device, ...]:
    """The devices that `CUDA_VISIBLE_DEVICES` leaves; CUDA stops at the first wrong number."""
    items = [item.strip() for item in (visible or "").split(",")]
    if visible is None or not all(item.lstrip("-").isdigit() for item in items):
        return devices
    kept: list[Device] = []
    for item in items:
        if not 0 <= int(item) < len(devices):
            break
        kept.append(devices[int(item)])
    return tuple(kept)


def _count(library: Any) -> int:
    count = ctypes.c_uint()
    _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
    return count.value


def _read_device(library: Any, index: int) -> Device:
    handle = ctypes.c_void_p()
    _check(library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
    name = ctypes.create_string_buffer(96)
    _check(library.nvmlDeviceGetName(handle, name, len(name)))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(
        library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    memory = (ctypes.c_ulonglong * 3)()  # total, free, used
    _check(library.nvmlDeviceGetMemoryInfo(handle, memory))
    arch = major.value * 10 + minor.value
    return Device(
        index,
        name.value.decode("utf-8", "replace"),
        arch,
        memory[0],
        cuda_dtypes(arch),
        GPU_ABILITIES,
    )


def _check(code: int) -> None:
    if code:
        raise OSError(f"the NVIDIA driver answered with error {code}")
