"""The conditions of a measurement: the machine, and the memory of its processes.

Linux tells all of it, in /proc; elsewhere `ps` tells the resident memory and no more.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX")


class Memory(NamedTuple):
    """Memory of one process in bytes; None where the system does not tell.

    Args:
        rss: resident, what it shares with others counted whole.
        pss: resident, what it shares divided by those who share it.
        anonymous: of that, what is no file's: its own data.
        private: of that, what no other process has mapped.
        peak: the most that was ever resident.
        threads: how many it has.
    """

    rss: int | None
    pss: int | None = None
    anonymous: int | None = None
    private: int | None = None
    peak: int | None = None
    threads: int | None = None


def memory_of(pid: int) -> Memory | None:
    """Memory of a process; None when there is none of this id."""
    if sys.platform != "linux":
        rss = _ps(["-o", "rss=", "-p", str(pid)]).split()
        return Memory(int(rss[0]) * 1024) if rss else None
    try:
        rolled = _kilobytes(PROC / str(pid) / "smaps_rollup")
        status = _kilobytes(PROC / str(pid) / "status")
    except OSError:
        return None
    threads = [path.name for path in (PROC / str(pid) / "task").glob("*")]
    return Memory(
        rss=rolled.get("Rss"),
        pss=rolled.get("Pss"),
        anonymous=rolled.get("Anonymous"),
        private=rolled.get("Private_Clean", 0) + rolled.get("Private_Dirty", 0),
        peak=status.get("VmHWM"),
        threads=len(threads),
    )


def _kilobytes(path: Path) -> dict[str, int]:
    """The lines `Name:  123 kB` of a file, in bytes."""
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and that still run."""
    if sys.platform != "linux":
        rows = [line.split() for line in _ps(["-A", "-o", "pid=,ppid="]).splitlines()]
        return sorted(int(child) for child, parent in rows if int(parent) == pid)
    found: set[int] = set()
    for task in (PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            found |= {int(word) for word in task.read_text().split()}
    return sorted(found)


def _ps(arguments: list[str]) -> str:
    try:
        return subprocess.run(
            ["ps", *arguments], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""


def conditions() -> dict[str, Any]:
    """What a figure depends on, as JSON values; read before anything is started."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": _total_memory(),
        "load_before": [round(value, 2) for value in _load()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sgld": _version("sgld-core"),
        "torch": _version("torch"),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _cpu() -> str:
    with suppress(OSError):
        for line in (PROC / "cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return f"{value.strip()} ({platform.machine()})"
    return platform.processor() or platform.machine()


def _load() -> tuple[float, ...]:
    return os.getloadavg() if hasattr(os, "getloadavg") else ()


def _total_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
