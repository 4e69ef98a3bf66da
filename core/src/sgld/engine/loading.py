"""Loads a family's components to where their residency wants them, in the asked precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
import torch
from torch import nn

from sgld.api.errors import ModelError
from sgld.engine.residency.store import Mode
from sgld.memory import Weight
from sgld.ops.table import Ops
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located
from sgld.weights.loading import dummy_module, load_module
from sgld.weights.mapping import Convert, Rename
from sgld.weights.module import build_on_meta

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
        pipeline_class: the class that the user wants, for pipelines that serve several.
        trust_remote_code: whether code of the checkpoint may be run.
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
    pipeline_class: str = ""
    trust_remote_code: bool = False
    progress: LoadProgress | None = None

    def home(self, name: str) -> torch.device:
        """Where the weights of a component are loaded to: the device, or the host for offload."""
        resident = self.modes.get(name, "resident") == "resident"
        return self.device if resident else torch.device("cpu")

    def check(self) -> None:
        """Open the headers of every component, so that a truncated file is known before the first
        gigabyte is read.

        Raises:
            ModelError: listing what is wrong with every component.
        """
        faults: list[ModelError] = []
        for name in () if self.dummy else self.located:
            try:
                self.checkpoint(name)
            except ModelError as error:
                faults.append(error)
        if len(faults) == 1:
            raise faults[0]
        if faults:
            text = "\n".join(error.message.rstrip() for error in faults)
            remedies = dict.fromkeys(error.remedy for error in faults if error.remedy)
            raise ModelError(text, code=faults[0].code, remedy=" ".join(remedies))

    def checkpoint(self, name: str) -> Checkpoint:
        """The stored tensors of component `name`: names, shapes and files, nothing read yet.

        Raises ModelError when a file is damaged, missing, or a pickle that may not be read.
        """
        weights = self.located[name].weights
        return Checkpoint.open(weights, allow_pickle=self.allow_pickle, field=name)

    def precision(
        self, name: str, keep_float32: Callable[[str], bool] | None
    ) -> Callable[[str], torch.dtype]:
        """The dtype of each tensor of component `name`."""
        chosen = self.dtypes[name]

        def dtype_of(tensor: str) -> torch.dtype:
            kept = keep_float32 is not None and keep_float32(tensor)
            return torch.float32 if kept else chosen

        return dtype_of

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
        dtype_of = self.precision(name, keep_float32)
        if self.dummy:
            log.info("drawing random weights", component=name)
            return dummy_module(build, device=self.home(name), dtype=dtype_of, seed=0)
        checkpoint, progress = self.checkpoint(name), self.progress
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


@dataclass(frozen=True, slots=True)
class Scale(Loader):
    """Builds modules without memory and notes in `weights` what each would take. Nothing is read or
    drawn."""

    weights: dict[str, Weight] = field(default_factory=dict)

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
        """The module on the meta device."""
        module, dtype_of = build_on_meta(build), self.precision(name, keep_float32)
        self.weights[name] = Weight.of(
            {
                key: (tensor.numel(), tensor.numel() * dtype_of(key).itemsize)
                for key, tensor in module.named_parameters()
            }
        )
        return module
