"""Opens pickle weights the user chose to trust: data only (`weights_only`), mapped, not read."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from sgld.api.errors import ModelError
from sgld.weights.dtypes import stored_name
from sgld.weights.header import Tensor

WRAPPERS: Final = ("state_dict", "model", "module", "params", "ema")
"""Keys under which training scripts commonly put the tensors of a checkpoint."""
GENERATORS: Final = ("generator_ema", "generator")
"""Keys of distillation, best first: averaged weights are the ones to use."""


def read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of the pickle `path` by name.

    Raises:
        ModelError: damaged (`checkpoint_incomplete`), or holding more than tensors (`unsafe_file`).
    """
    try:
        # Only the zip format can be mapped; the older one is read as a whole.
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except pickle.UnpicklingError as error:
        if "unsupported global" in str(error).lower():
            raise ModelError(
                f"{path}: holds more than tensors, so opening it would run code.",
                code="unsafe_file",
                remedy="Get the weights as .safetensors.",
            ) from error
        raise _damaged(path, error) from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error
    return _tensors(path, content)


def describe(name: str, path: Path, tensor: torch.Tensor) -> Tensor:
    """The record of a mapped tensor; it has no byte range."""
    return Tensor(name, path, stored_name(tensor.dtype), tuple(tensor.shape), -1, -1)


def _tensors(path: Path, content: Any) -> dict[str, torch.Tensor]:
    if not isinstance(content, Mapping):
        raise _damaged(path, f"it holds a {type(content).__name__}, not tensors by name")
    found = {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}
    if found:
        return found
    inner = [key for key in WRAPPERS if isinstance(content.get(key), Mapping)]
    if not inner:
        inner = [key for key in GENERATORS if isinstance(content.get(key), Mapping)][:1]
    if len(inner) == 1:
        return _tensors(path, content[inner[0]])
    keys = ", ".join(repr(key) for key in list(content)[:8])
    raise _damaged(path, f"no tensors at its top; keys: {keys}")


def _damaged(path: Path, why: object) -> ModelError:
    lines = str(why).strip().splitlines() or [type(why).__name__]
    return ModelError(
        f"{path}: not a readable weight file ({lines[0]}).",
        code="checkpoint_incomplete",
        remedy="Fetch it again, or get the weights as .safetensors.",
    )
