"""Loads a family's components to where their residency wants them, in the asked precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
import torch
from torch import nn

from sgld.engine.residency.store import Mode
from sgld.ops.table import Ops
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located
from sgld.weights.loading import dummy_module, load_module
from sgld.weights.mapping import Convert, Rename

log = structlog.get_logger("sgld.weights")

LoadProgress = Callable[[str, int, int], None]
"""Told `(component, bytes done, bytes in all)`."""


@dataclass(frozen=True, slots=True)
class Loader:
    """What a family's `load` needs to know and the two ways to get a module.

    Args:
        files: the checkpoint.
        located: component name → where its configuration and weights lie.
        device: where calls run.
        modes: component name → residency.
        dtypes: component name → precision.
        ops: the kernels that modules are built with.
        dummy: random weights instead of the checkpoint's.
        allow_pickle: whether pickle files may be read.
        vae_tiling: decode in tiles, for less memory.
    """

    files: ModelFiles
    located: Mapping[str, Located]
    device: torch.device
    modes: Mapping[str, Mode]
    dtypes: Mapping[str, torch.dtype]
    ops: Ops = field(default_factory=Ops.torch)
    dummy: bool = False
    allow_pickle: bool = False
    vae_tiling: bool = False
    progress: LoadProgress | None = None

    def home(self, name: str) -> torch.device:
        """Where the weights of a component are loaded to: the device, or the host for offload."""
        resident = self.modes.get(name, "resident") == "resident"
        return self.device if resident else torch.device("cpu")

    def module(
        self,
        name: str,
        build: Callable[[], nn.Module],
        *,
        rename: Rename | None = None,
        convert: Convert = (),
        keep_float32: Callable[[str], bool] | None = None,
        optional: Sequence[str] = (),
        ignore: Sequence[str] = (),
    ) -> nn.Module:
        """Build component `name` without memory, then fill it from its checkpoint or at random.

        `keep_float32` names the tensors that stay float32 whatever the precision is. The other
        arguments are those of `sgld.weights.loading.load_module`.
        """
        precision = self.dtypes[name]

        def dtype_of(tensor: str) -> torch.dtype:
            kept = keep_float32 is not None and keep_float32(tensor)
            return torch.float32 if kept else precision

        if self.dummy:
            log.info("drawing random weights", component=name)
            return dummy_module(build, device=self.home(name), dtype=dtype_of, seed=0)
        where = self.located[name]
        checkpoint = Checkpoint.open(where.weights, allow_pickle=self.allow_pickle, field=name)
        progress = self.progress
        return load_module(
            build,
            checkpoint,
            rename=rename,
            convert=convert,
            device=self.home(name),
            dtype=dtype_of,
            progress=(lambda done, total: progress(name, done, total)) if progress else None,
            optional=optional,
            ignore=ignore,
        )
