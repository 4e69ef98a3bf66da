"""Our own attention and the references of all ops keep the contracts that kernels are held to."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from sgld.api import KernelSpec
from sgld.ops.table import Ops
from sgld.testing.conformance import AttentionContract, KernelContract
from sgld.testing.conformance.op_cases import CASES
from sgld.testing.isolated import local_plugin


class TestSdpa(AttentionContract):
    plugin = "builtin"
    backend = "sdpa"


def target(op: str) -> str:
    function = Ops.reference()[op]
    return f"{function.__module__}:{function.__qualname__}"


REFERENCES = [
    KernelSpec(f"reference-{op.replace('_', '-').replace('.', '-')}", op, target(op))
    for op in CASES
]


@pytest.fixture(scope="module")
def references() -> Iterator[ModuleType]:
    """A plugin that offers every reference as a kernel."""
    with local_plugin("references", *REFERENCES) as module:
        yield module


@pytest.fixture(autouse=True)
def _plugin(references: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(References, "plugin", references)


class References(KernelContract):
    """One of them."""


for spec in REFERENCES:
    name = f"Test{spec.op.title().replace('.', '').replace('_', '')}"
    globals()[name] = type(name, (References,), {"kernel": spec.id, "__module__": __name__})


def test_every_op_has_cases_or_is_a_role_of_attention() -> None:
    assert set(Ops.reference()) == {*CASES, "attention.self", "attention.cross", "attention.masked"}


del AttentionContract, KernelContract  # what is imported is collected
