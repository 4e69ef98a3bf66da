"""The kernels' tests on the CPU, in a process in which Triton interprets; see conftest.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FILES = ("test_contract.py", "test_properties.py", "test_lingbot.py")
LEAST = 88
"""Tests of these files together: fewer would mean that something was left out."""


@pytest.mark.multi_process
def test_on_the_cpu() -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this machine")
    env = {**os.environ, "TRITON_INTERPRET": "1", "SGLD_TEST_DEVICE": "cpu"}
    for told in [name for name in env if name.startswith(("PYTEST_", "COV_"))]:
        del env[told]
    paths = [HERE / name for name in FILES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *paths],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"(\d+) (passed|skipped|xfailed)", done.stdout.splitlines()[-1])
    assert [word for _, word in found] == ["passed"], done.stdout
    assert int(found[0][0]) >= LEAST, done.stdout
