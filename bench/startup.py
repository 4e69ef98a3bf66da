"""How long `sgld` takes to start, warm: the target is under 150 ms for help, list and completion.

    python bench/startup.py [--runs N]

Prints minimum and median wall time of N fresh processes each, beside `python -c pass`, interleaved
so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

SCAN = "from sgld.plugins.scan import scan; scan()"
METADATA = "from importlib.metadata import entry_points; entry_points(group='sgld.plugins.v1')"
COMPLETE = {"_SGLD_COMPLETE": "complete_bash", "COMP_WORDS": "sgld pl", "COMP_CWORD": "1"}

Case = tuple[str, list[str], dict[str, str]]
CASES: list[Case] = [
    ("python -c pass", ["-c", "pass"], {}),
    ("sgld --version", ["-m", "sgld", "--version"], {}),
    ("sgld --help", ["-m", "sgld", "--help"], {}),
    ("sgld plugins list", ["-m", "sgld", "plugins", "list"], {}),
    ("sgld models list", ["-m", "sgld", "models", "list"], {}),
    ("shell completion", ["-m", "sgld"], COMPLETE),
    ("our entry-point scan", ["-c", SCAN], {}),
    ("importlib.metadata scan", ["-c", METADATA], {}),
]


def seconds(arguments: list[str], environ: dict[str, str]) -> float:
    """Wall time of one fresh process."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - began


def measure(runs: int) -> list[tuple[str, float, float]]:
    """Name, minimum and median in milliseconds of each case."""
    times: dict[str, list[float]] = {name: [] for name, _, _ in CASES}
    for run in range(runs + 1):
        for name, arguments, environ in CASES:
            taken = seconds(arguments, environ)
            if run:  # the first round warms the file cache and writes bytecode
                times[name].append(taken * 1000)
    return [(name, min(row), statistics.median(row)) for name, row in times.items()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=15)
    rows = measure(parser.parse_args().runs)
    base = rows[0][1]
    print(f"{'':<26}{'min ms':>8}{'median':>8}{'over python':>13}")
    for name, least, median in rows:
        print(f"{name:<26}{least:>8.0f}{median:>8.0f}{least - base:>13.0f}")


if __name__ == "__main__":
    main()
