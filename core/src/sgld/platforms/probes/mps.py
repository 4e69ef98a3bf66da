"""The GPU of an Apple machine: every one with Apple silicon has it."""

from __future__ import annotations

import platform
import sys

from sgld.platforms.generations import mps_dtypes
from sgld.platforms.probe import Device, Probe, host_memory


def probe_mps(
    *, system: str = sys.platform, machine: str | None = None, release: str | None = None
) -> Probe:
    """The Metal device. Its memory is the machine's, which it shares.

    Args:
        system: as `sys.platform` says it.
        machine: as `platform.machine()` says it; None: ask.
        release: the version of macOS, such as `14.5`; None: ask.
    """
    machine = platform.machine() if machine is None else machine
    if system != "darwin":
        return Probe(False, f"this is {system}, not macOS")
    if machine != "arm64":
        return Probe(False, f"this Mac has a processor of kind {machine}, not Apple silicon")
    major = (platform.mac_ver()[0] if release is None else release).partition(".")[0]
    dtypes = mps_dtypes(int(major) if major.isdecimal() else 0)
    return Probe(True, devices=(Device(0, "Apple GPU", 0, host_memory(), dtypes),))
