"""What every realtime adapter keeps: on its own, and in sessions of a tiny checkpoint.

Split by subject: `realtime_reading` (what clients send), `realtime_state` (what it holds, and what
chunks see of it).
"""

from __future__ import annotations

from sgld.testing.conformance.realtime_reading import Reading
from sgld.testing.conformance.realtime_state import State


class RealtimeContract(Reading, State):
    """A realtime adapter.

        class TestMine(RealtimeContract):
            adapter = "acme-world"
            samples = {"prompt": "it rains", "camera_actions": [["w"], ["w", "a"]]}

    Sessions of the pipeline's tiny checkpoint run in this process, on `--sgld-device`.
    """


__all__ = ["RealtimeContract"]
