"""The op table: immutable, complete, and strict about names."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch

from sgld.api.errors import PluginError
from sgld.ops import Ops, attention


def test_replace_makes_a_new_table() -> None:
    before = Ops.reference()

    def mine(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q

    after = before.replace({"attention.self": mine})
    assert after["attention.self"] is mine
    assert after["attention.cross"] is attention.attend
    assert before["attention.self"] is attention.attend
    assert set(after) == set(before)


def test_unknown_ops_are_refused_by_name() -> None:
    with pytest.raises(PluginError, match=r"ops=norm\.lay, x\.y: no such op.*norm\.layer_modulate"):
        Ops.reference().replace({"norm.lay": torch.add, "x.y": torch.add})


def test_the_table_cannot_be_written_to() -> None:
    table = Ops.torch()
    with pytest.raises(TypeError):
        table["norm.layer"] = torch.add  # pyright: ignore[reportIndexIssue]
    with pytest.raises(AttributeError):
        table.extra = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_torch_table_takes_torch_attention() -> None:
    changed = {name for name, op in Ops.torch().items() if Ops.reference()[name] is not op}
    assert changed == {"attention.self", "attention.cross", "attention.masked"}


def test_tables_travel_to_other_processes() -> None:
    table = Ops.torch()
    assert dict(pickle.loads(pickle.dumps(table))) == dict(table)
    assert dict(copy.deepcopy(table)) == dict(table)


def test_every_op_is_documented() -> None:
    docs = Path(__file__).parents[2] / "docs"
    if not docs.is_dir():
        pytest.skip("the documentation is not part of the source distribution")
    page = (docs / "ops.md").read_text(encoding="utf-8")
    missing = [name for name in Ops.reference() if f"`{name}`" not in page]
    assert not missing
