"""Writes the table of metrics in docs/observability.md from the code, so that it cannot be wrong.

uv run python docs/generate_metrics.py            write the table
uv run python docs/generate_metrics.py --check    exit 1 when the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from sgld.observe.metrics import METRICS, Declared

PAGE = Path(__file__).with_name("observability.md")
BEGIN = "<!-- metrics: written by docs/generate_metrics.py -->"
END = "<!-- end of metrics -->"


def table() -> str:
    """One row per metric, in the order of the code, then the buckets of the histograms."""
    rows = ["| name | type | labels | says |", "|---|---|---|---|"]
    rows += [_row(metric) for metric in METRICS]
    buckets: dict[tuple[float, ...], list[str]] = {}
    for metric in METRICS:
        if metric.buckets:
            buckets.setdefault(metric.buckets, []).append(f"`{metric.name}`")
    lines = [
        f"* {', '.join(names)}: {' '.join(f'{bound:g}' for bound in bounds)}"
        for bounds, names in buckets.items()
    ]
    return "\n".join([*rows, "", "Upper bounds of the buckets, in seconds:", "", *lines])


def page(text: str) -> str:
    """`text` of the page with the table in its place."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def _row(metric: Declared) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |"


def main(arguments: list[str]) -> int:
    """Write or check the page."""
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" in arguments:
        if old != new:
            print(f"{PAGE.name} is out of date; run docs/generate_metrics.py")
            return 1
        return 0
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
