"""`Checkpoint`: the tensors of one component by name, known from file headers alone. Torch-free.

    checkpoint = Checkpoint.open(folder)             # finds single or sharded safetensors
    checkpoint["blocks.0.weight"].shape              # nothing but headers has been read
    checkpoint.verify(expected).raise_if_any("vae")  # every missing, extra, wrong-shaped tensor

Pickle files (.bin, .pt, .pth, .ckpt) are refused unless `allow_pickle`, which imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sgld.api.errors import ModelError
from sgld.weights.header import BrokenFile, Tensor, read_header
from sgld.weights.mapping import CheckpointError, Convert, Problems, Rename, Shape, make_plan
from sgld.weights.selection import Selection, select, weight_files

__all__ = ["Checkpoint", "CheckpointError", "Problems", "Tensor", "weight_files"]


class Checkpoint(Mapping[str, Tensor]):
    """Stored tensors by name: a mapping name → `Tensor` (file, dtype, shape, byte range).

    Args:
        tensors: the stored tensors.
        files: the files they lie in.
        metadata: merged `__metadata__` of the headers.
        pickled: tensors of pickle files, mapped into memory, by name.
        label: what messages call it, such as `transformer`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        files: Sequence[Path],
        *,
        metadata: Mapping[str, str] | None = None,
        pickled: Mapping[str, Any] | None = None,
        label: str = "",
    ) -> None:
        self._tensors = dict(tensors)
        self.files = tuple(files)
        self.metadata = dict(metadata or {})
        self.pickled = dict(pickled or {})
        self.label = label or (str(files[0]) if files else "checkpoint")

    @classmethod
    def open(
        cls,
        source: Path | str | Sequence[Path],
        *,
        variant: str = "",
        allow_pickle: bool = False,
        field: str = "",
    ) -> Checkpoint:
        """Read the headers of `source`: a folder, a weight file, an index file or several files.

        Args:
            source: where the weights lie.
            variant: `fp16`, `ema`, … to take `model.<variant>.safetensors`.
            allow_pickle: accept pickle files; they are still opened with `weights_only=True`.
            field: the component or option that messages name.

        Raises:
            ModelError: `checkpoint_incomplete` with every fault of every file, or `unsafe_file`.
        """
        try:
            if isinstance(source, (str, Path)):
                selection = select(Path(source), variant=variant, allow_pickle=allow_pickle)
            else:
                selection = _several([Path(path) for path in source], allow_pickle)
        except ModelError as error:
            prefix = f"{field}: " if field else ""
            raise ModelError(prefix + error.message, code=error.code, remedy=error.remedy) from None
        return _read_pickles(selection, field) if selection.pickled else _read(selection, field)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def total_bytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(tensor.bytes for tensor in self._tensors.values())

    @property
    def shapes(self) -> dict[str, Shape]:
        """Name → shape of every stored tensor."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def verify(
        self,
        expected: Mapping[str, Shape],
        rename: Rename | None = None,
        *,
        convert: Convert = (),
        optional: Iterable[str] = (),
        ignore: Iterable[str] = (),
    ) -> Problems:
        """Every difference between the stored tensors and `expected` (module name → shape); the
        arguments are those of `sgld.weights.mapping.make_plan`."""
        plan = make_plan(
            expected,
            self.shapes,
            rename=rename,
            convert=convert,
            optional=optional,
            ignore=ignore,
        )
        return plan.problems


def _several(paths: Sequence[Path], allow_pickle: bool) -> Selection:
    parts = [select(path, allow_pickle=allow_pickle) for path in paths]
    if len({part.pickled for part in parts}) > 1:
        raise ModelError(
            "pickle and safetensors files are mixed.",
            code="checkpoint_incomplete",
            remedy="Give one kind.",
        )
    files = tuple(dict.fromkeys(path for part in parts for path in part.files))
    faults = tuple(fault for part in parts for fault in part.faults)
    return Selection(files, faults=faults, pickled=bool(parts) and parts[0].pickled)


def _read(selection: Selection, field: str) -> Checkpoint:
    faults = list(selection.faults)
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    broken: set[str] = set()
    for path in selection.files:
        try:
            header = read_header(path)
        except BrokenFile as error:
            faults.append(str(error))
            broken.add(path.name)
            continue
        metadata.update(header.metadata)
        for name, tensor in header.tensors.items():
            if name in tensors:
                both = f"{tensors[name].file.name} and {path.name}"
                faults.append(f"tensor {name!r} is in two files, {both}")
            tensors[name] = tensor
    for name, shard in (selection.weight_map or {}).items():
        found = tensors.get(name)
        present = {path.name for path in selection.files} - broken
        if shard in present and (found is None or found.file.name != shard):
            faults.append(f"tensor {name!r} is not in {shard}, though the index says so")
    if not faults and not tensors:
        faults.append("the files hold no tensors")
    _raise_faults(faults, field or str(selection.files[0] if selection.files else "checkpoint"))
    return Checkpoint(tensors, selection.files, metadata=metadata, label=field)


def _raise_faults(faults: Sequence[str], where: str) -> None:
    if faults:
        problems = Problems(other=tuple(faults))
        message = f"{where}: the checkpoint is damaged or incomplete.\n{problems}\n"
        raise CheckpointError(message, problems, remedy="Fetch these files again.")


def _read_pickles(selection: Selection, field: str) -> Checkpoint:
    from sgld.weights import pickled  # noqa: PLC0415 - it imports torch

    tensors: dict[str, Any] = {}
    stored: dict[str, Tensor] = {}
    faults: list[str] = []
    for path in selection.files:
        for name, tensor in pickled.read(path).items():
            if name in tensors:
                faults.append(f"tensor {name!r} is in two files, the second is {path.name}")
            try:
                stored[name] = pickled.describe(name, path, tensor)
            except ValueError as error:
                faults.append(f"tensor {name!r} in {path.name}: {error}")
            tensors[name] = tensor
    _raise_faults(faults, field or str(selection.files[0]))
    return Checkpoint(stored, selection.files, pickled=tensors, label=field)
