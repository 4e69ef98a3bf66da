"""Makes the modules that several test files share importable."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests run with import-mode=importlib, which does not make siblings importable.
sys.path.insert(0, str(Path(__file__).parent))
