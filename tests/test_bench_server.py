"""The benchmark of the server runs; what it measures here means little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench" / "server.py"


@pytest.mark.multi_process
@pytest.mark.slow
def test_quick_run_measures(tmp_path: Path) -> None:
    """Two of its four parts: each starts a server, and the others are as long again."""
    parts = ["--only", "overhead", "stream"]
    command = [sys.executable, str(BENCH), "--quick", *parts, "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "server-quick.json").read_text())
    rows = {row["name"]: row["value"] for row in report["rows"]}
    assert len(rows) == 6
    assert all(name in done.stdout for name in rows)
    assert rows["streaming 16 MiB, growth"] < 12
    assert 0 < rows["request in process, median"] < rows["request over HTTP, median"]
