"""`python -m sgld` is `sgld`."""

from __future__ import annotations

import sys

from sgld.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
