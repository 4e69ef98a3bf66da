"""The CPU: always there, float32, no streams. Memory is the machine's or the container's."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

from sgld.api.contracts import DeviceFacts
from sgld.platforms.generations import CPU_DTYPES
from sgld.platforms.platform import Memory, Platform


class CpuPlatform(Platform):
    """The host's processor.

    Args:
        proc: where Linux shows processes; elsewhere it does not exist and resident memory reads 0.
        cgroup: where Linux shows the limits of a container.
    """

    id = "cpu"

    def __init__(
        self, *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._proc = proc
        self._cgroup = cgroup

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def facts(self) -> DeviceFacts:
        return DeviceFacts("cpu", 0, CPU_DTYPES, frozenset())

    def default_dtype(self) -> torch.dtype:
        return torch.float32

    def memory(self) -> Memory:
        machine, process = self._table("meminfo"), self._table("self/status")
        total = machine.get("MemTotal", 0) or _physical()
        free = machine.get("MemAvailable", total)
        limit, used = self._number("memory.max"), self._number("memory.current")
        if limit is not None and limit < total:
            total, free = limit, min(free, max(0, limit - (used or 0)))
        return Memory(total, free, process.get("VmRSS", 0), process.get("VmHWM", 0))

    def reset_peak(self) -> None:
        # 5 is the kernel's word for "forget the high-water mark"; a sandbox may refuse it.
        with suppress(OSError):
            (self._proc / "self" / "clear_refs").write_text("5")

    def _table(self, name: str) -> dict[str, int]:
        """Rows `Name: 123 kB` of a file as bytes; empty where there is no such file."""
        table: dict[str, int] = {}
        with suppress(OSError):
            for line in (self._proc / name).read_text().splitlines():
                key, _, rest = line.partition(":")
                words = rest.split()
                if len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
                    table[key] = int(words[0]) * 1024
        return table

    def _number(self, name: str) -> int | None:
        """A number of bytes in a cgroup file; None where there is none or it says `max`."""
        with suppress(OSError, ValueError):
            return int((self._cgroup / name).read_text())
        return None


def _physical() -> int:
    if sys.platform == "win32":
        return 0
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0
