"""Names of tensor types: the user's, the file format's and torch's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from sgld.weights.overrides import parse_precision

STORED: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {
        "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
        "U16": torch.uint16, "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64,
        "U64": torch.uint64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
        "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
        "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    }
)  # fmt: skip
"""safetensors dtype name → torch dtype, for those that torch can hold one element per item."""

NAMES: Final = MappingProxyType({dtype: name for name, dtype in STORED.items()})


def torch_dtype(precision: str) -> torch.dtype | None:
    """The torch dtype of a precision, None for `auto` (as stored).

    Raises:
        ParameterError: not a known precision.
    """
    known = parse_precision(precision)
    return None if known == "auto" else getattr(torch, known)


def stored_name(dtype: torch.dtype) -> str:
    """The safetensors name of `dtype`.

    Raises:
        ValueError: safetensors has none.
    """
    try:
        return NAMES[dtype]
    except KeyError:
        raise ValueError(f"no safetensors name for {dtype}") from None
