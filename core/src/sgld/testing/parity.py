"""Comparing numbers with a reference and showing the comparison.

A parity test calls `ParityTable.check` for each comparison; the rows are printed at once, so that
`pytest -m parity -rA` shows them under each passed test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class ParityRow(NamedTuple):
    """One comparison: what was compared, the relative L2 error found and the largest allowed."""

    name: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is a number and within the limit."""
        return self.error <= self.limit

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        return f"parity  {self.name:<48} {self.error:.2e}  (limit {self.limit:.0e})  {verdict}"


class ParityTable:
    """Collects comparisons under one title; iterate `rows` or print the table."""

    def __init__(self, title: str = "") -> None:
        self.title = title
        self.rows: list[ParityRow] = []

    def check(self, name: str, actual: Any, expected: Any, limit: float) -> float:
        """Compare two arrays by `relative_l2`, print the row and return the error.

        Raises AssertionError when the error is above `limit` or not a number.
        """
        label = f"{self.title}: {name}" if self.title else name
        row = ParityRow(label, relative_l2(actual, expected), limit)
        self.rows.append(row)
        print(row)
        assert row.passed, str(row)
        return row.error

    def __str__(self) -> str:
        return "\n".join(str(row) for row in self.rows)


def relative_l2(actual: Any, expected: Any) -> float:
    """‖actual − expected‖ / ‖expected‖ in float64, for tensors or arrays of one shape.

    Raises ValueError for different shapes. Values that are not finite give NaN, and so does a zero
    reference unless both are zero: neither may pass a test by accident.
    """
    left, right = _float64(actual), _float64(expected)
    if left.shape != right.shape:
        raise ValueError(f"shapes differ: {left.shape} and {right.shape}")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return float("nan")
    difference = float(np.linalg.norm(left - right))
    scale = float(np.linalg.norm(right))
    if scale == 0.0:
        return 0.0 if difference == 0.0 else float("nan")
    return difference / scale


def _float64(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if hasattr(values, "detach"):  # numpy has no bfloat16, so torch converts first
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)
