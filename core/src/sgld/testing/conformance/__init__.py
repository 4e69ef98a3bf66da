"""What sgld asks of each kind of thing that a plugin brings, as classes of tests to inherit.

    # conftest.py
    pytest_plugins = ["sgld.testing.plugin"]

    # test_contract.py
    from sgld.testing.conformance import PipelineContract

    class TestMine(PipelineContract):
        pipeline = "acme-t2v"

| class | says what is tested by |
|---|---|
| `PluginContract` | `plugin = "name"` |
| `PipelineContract` | `pipeline = "id"` |
| `ModelContract` | `model = "id"` |
| `StageContract` | `stage = "id"`, or `make_stage` and `make_job` |
| `RealtimeContract` | `adapter = "id"` |
| `CacheContract` | `policy = "id"` |
| `AttentionContract` | `backend = "id"` |
| `KernelContract` | `kernel = "id"` |
| `PlatformContract` | `platform = "id"` |

A conformance test may be overridden only with `@pytest.mark.xfail(reason=...)`; see
`sgld.testing.conformance.base`. A class is imported when it is asked for, so that whoever tests a
plugin module without torch needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sgld.testing.conformance.attention import AttentionContract
    from sgld.testing.conformance.base import Contract
    from sgld.testing.conformance.cache import CacheContract
    from sgld.testing.conformance.kernel import KernelContract
    from sgld.testing.conformance.model import ModelContract
    from sgld.testing.conformance.pipeline import PipelineContract
    from sgld.testing.conformance.platform import PlatformContract
    from sgld.testing.conformance.plugin import PluginContract
    from sgld.testing.conformance.realtime import RealtimeContract
    from sgld.testing.conformance.stage import StageContract

__all__ = [
    "AttentionContract",
    "CacheContract",
    "Contract",
    "KernelContract",
    "ModelContract",
    "PipelineContract",
    "PlatformContract",
    "PluginContract",
    "RealtimeContract",
    "StageContract",
]

WHERE: Final = {
    name: f"{__name__}.{'base' if name == 'Contract' else name.removesuffix('Contract').lower()}"
    for name in __all__
}


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(WHERE[name]), name)
