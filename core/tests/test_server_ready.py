"""Why a server is not ready, in words that other sentences can hold."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sgld.server.refusals import NotReady, check_ready
from sgld.server.services import Readiness
from sgld.server.warmup import get_ready


def test_the_reason_of_an_engine_that_could_not_start_ends_in_one_full_stop() -> None:
    said = "SGLD-P007 acme 1.0: target 'a:B' cannot be used: module 'a' has no 'B'. Correct it."
    ready = Readiness()
    state = SimpleNamespace(status="failed", reason=said, loading=None)
    services: Any = SimpleNamespace(readiness=ready, engine=SimpleNamespace(state=state))
    asyncio.run(get_ready(services))
    assert ready.failed
    with pytest.raises(NotReady) as caught:
        check_ready(ready)
    assert str(caught.value).endswith(f"the engine could not start: {said}")
