"""Arrays that were right once, kept in a file beside a test.

    Golden(folder)("frames", output.frames)                    golden/frames.npz
    Golden(folder)("step.safetensors", {"latents": x}, atol=1e-5)

A file is made, or made anew, with `pytest --sgld-golden=write`; look at what changed before you
commit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

REMEDY: Final = (
    "if the new values are right, run pytest with --sgld-golden=write and commit the file"
)


class Golden:
    """Compares arrays with files in a folder, or writes them.

    Args:
        folder: where the files lie.
        write: write in place of comparing.
    """

    def __init__(self, folder: Path, *, write: bool = False) -> None:
        self._folder, self._write = folder, write

    def __call__(self, name: str, values: Any, *, atol: float = 0.0, rtol: float = 0.0) -> None:
        """Compare an array or tensor, or a mapping of them, with the file of that name.

        Raises AssertionError that lists every array that differs: missing, of another shape or
        dtype, or off by more than `atol + rtol * |golden|` anywhere. NaN equals NaN.
        """
        path = self._folder / (name if name.endswith(".safetensors") else f"{name}.npz")
        given = values if isinstance(values, Mapping) else {"value": values}
        arrays = {key: _array(value) for key, value in given.items()}
        if self._write:
            path.parent.mkdir(parents=True, exist_ok=True)
            _save(path, arrays)
            return
        if not path.is_file():
            raise AssertionError(f"there is no golden file {path}: {REMEDY}")
        faults = _differences(arrays, _load(path), atol, rtol)
        if faults:
            lines = "".join(f"\n  {line}" for line in faults)
            raise AssertionError(f"{path.name} differs:{lines}\n  {REMEDY}")


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], atol: float, rtol: float
) -> list[str]:
    faults = [f"{key}: is not there any more" for key in wanted.keys() - found.keys()]
    faults += [f"{key}: is not in the file" for key in found.keys() - wanted.keys()]
    for key in sorted(found.keys() & wanted.keys()):
        mine, theirs = found[key], wanted[key]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            faults.append(
                f"{key}: is {mine.dtype} {list(mine.shape)}, "
                f"the file has {theirs.dtype} {list(theirs.shape)}"
            )
        elif not np.allclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=True):
            apart = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
            worst = np.unravel_index(np.nan_to_num(apart, nan=np.inf).argmax(), apart.shape)
            place = [int(index) for index in worst]
            faults.append(
                f"{key}: off by {apart[worst]:.3g} at {place} ({mine[worst]!r}, the file has "
                f"{theirs[worst]!r}); allowed are atol={atol:g}, rtol={rtol:g}"
            )
    return sorted(faults)


def _array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):  # numpy has no bfloat16
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        value = value.numpy()
    return np.asarray(value)


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    if path.suffix == ".safetensors":
        from safetensors.numpy import save_file  # noqa: PLC0415

        save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, path)
    else:
        np.savez_compressed(path, **arrays)


def _load(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file  # noqa: PLC0415

        return load_file(path)
    with np.load(path, allow_pickle=False) as held:
        return {key: held[key] for key in held.files}
