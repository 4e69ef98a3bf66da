"""Huawei Ascend NPUs through their device files, /dev/davinci0 and on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sgld.platforms.probe import Probe
from sgld.platforms.probes.nodes import Nodes, probe_nodes

NODES: Final = Nodes("Ascend NPU", "davinci", "ASCEND_RT_VISIBLE_DEVICES")


def probe_npu(environ: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Probe:
    """NPUs whose device files this process may read and write; see `probe_nodes`."""
    return probe_nodes(NODES, environ, root)
