"""The table of named ops that modules take in their constructor: no globals, no dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sgld.api.errors import PluginError
from sgld.ops import activation, attention, linear_attention, norm, residual

Op = Callable[..., Any]


class Ops(Mapping[str, Op]):
    """An immutable table: op name → callable. `docs/ops.md` lists names, signatures and contracts.

    Start from `Ops.reference()` or `Ops.torch()` and put kernels in with `replace`.
    """

    __slots__ = ("_table",)

    def __init__(self, table: Mapping[str, Op]) -> None:
        self._table = dict(table)

    @classmethod
    def reference(cls) -> Ops:
        """Every op as its plain-torch reference, attention written out in float32."""
        return cls(
            {
                "norm.layer": norm.layer,
                "norm.layer_modulate": norm.layer_modulate,
                "norm.rms": norm.rms,
                "norm.rms_rope": norm.rms_rope,
                "norm.head_rms_rope": norm.head_rms_rope,
                "norm.channel_rms_silu": norm.channel_rms_silu,
                "residual.gate": residual.gate,
                "residual.gate_layer": residual.gate_layer,
                "residual.gate_layer_modulate": residual.gate_layer_modulate,
                "activation.gelu_tanh": activation.gelu_tanh,
                "attention.self": attention.attend,
                "attention.cross": attention.attend,
                "attention.masked": attention.attend,
                "linear_attention.relu": linear_attention.relu,
                "linear_attention.relu_rope": linear_attention.relu_rope,
            }
        )

    @classmethod
    def torch(cls) -> Ops:
        """The references with attention on torch's own kernels: what runs where no plugin helps."""
        roles = ("attention.self", "attention.cross", "attention.masked")
        return cls.reference().replace(dict.fromkeys(roles, attention.sdpa_backend))

    def replace(self, kernels: Mapping[str, Op]) -> Ops:
        """A new table with some ops exchanged.

        Raises:
            PluginError: a name that is not in this table.
        """
        unknown = sorted(set(kernels) - set(self._table))
        if unknown:
            raise PluginError(
                f"ops={', '.join(unknown)}: no such op.",
                remedy=f"Known ops: {', '.join(sorted(self._table))}.",
            )
        return Ops({**self._table, **kernels})

    def __getitem__(self, name: str) -> Op:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"Ops({', '.join(sorted(self._table))})"
