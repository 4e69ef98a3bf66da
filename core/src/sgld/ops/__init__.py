"""Named operations: a signature, a plain-torch reference, and a table that kernels plug into.

`Ops` is the table (`sgld.ops.table`); `attention`, `norm`, `rope`, `residual` and `activation` hold
the references. The same names, shapes and contracts are listed in `docs/ops.md`.
"""

from __future__ import annotations

from sgld.ops.table import Ops

__all__ = ["Ops"]
