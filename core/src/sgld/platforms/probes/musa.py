"""Moore Threads GPUs through their device files, /dev/mtgpu.0 and on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sgld.platforms.probe import Probe
from sgld.platforms.probes.nodes import Nodes, probe_nodes

NODES: Final = Nodes("Moore Threads GPU", "mtgpu.", "MUSA_VISIBLE_DEVICES")


def probe_musa(environ: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Probe:
    """MUSA devices whose device files this process may read and write; see `probe_nodes`."""
    return probe_nodes(NODES, environ, root)
