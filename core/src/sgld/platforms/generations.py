"""What the generations of a family compute in, by architecture number. Torch-free, so that a probe
says before anything is imported what the platform says of the opened device."""

from __future__ import annotations

from typing import Final

from sgld.api.abilities import GRAPHS, PINNED, STREAMS

CPU_DTYPES: Final = frozenset({"float32", "float64", "bfloat16"})
GPU_ABILITIES: Final = frozenset({STREAMS, PINNED, GRAPHS})
"""Of CUDA and ROCm devices alike."""


def cuda_dtypes(arch: int) -> frozenset[str]:
    """Dtypes of a CUDA device; `arch` is its compute capability without the dot, 90 for 9.0."""
    names = {"float32", "float16", "float64"}
    if arch >= 80:
        names.add("bfloat16")
    if arch >= 89:
        names.add("float8_e4m3fn")
    return frozenset(names)


def rocm_dtypes(arch: int) -> frozenset[str]:
    """Dtypes of a ROCm device; `arch` is its gfx_target_version, 90402 for gfx942.

    bfloat16 came with gfx908 among accelerators and with gfx11 among graphics cards; gfx942 has
    the float8 format of its own, gfx950 and gfx12 the common one.
    """
    names = {"float32", "float16", "float64"}
    accelerator = arch < 100000
    if (accelerator and arch >= 90008) or arch >= 110000:
        names.add("bfloat16")
    if arch // 100 == 904:
        names.add("float8_e4m3fnuz")
    if (accelerator and arch >= 90500) or arch >= 120000:
        names.add("float8_e4m3fn")
    return frozenset(names)


def mps_dtypes(macos: int) -> frozenset[str]:
    """Dtypes of Metal on a major version of macOS; it has no float64."""
    names = {"float32", "float16"}
    return frozenset(names | {"bfloat16"} if macos >= 14 else names)
