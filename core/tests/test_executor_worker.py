"""What the engine's process does before it loads a model."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from unittest import mock

import pytest

from sgld.engine.executors.worker import _leave_triton_out


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Modules as they are, but for Triton, which nobody has imported."""
    with mock.patch.dict(sys.modules):
        sys.modules.pop("triton", None)
        yield


@pytest.mark.parametrize("value", [None, "", "0"])
def test_on_a_cpu_triton_is_as_if_it_were_not_installed(value: str | None) -> None:
    _leave_triton_out({} if value is None else {"TRITON_INTERPRET": value})
    assert importlib.util.find_spec("triton") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("triton")


def test_its_interpreter_may_be_used() -> None:
    _leave_triton_out({"TRITON_INTERPRET": "1"})
    assert "triton" not in sys.modules


def test_what_is_imported_stays() -> None:
    sys.modules["triton"] = sys
    _leave_triton_out({})
    assert sys.modules["triton"] is sys
