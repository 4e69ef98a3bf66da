"""`sgld.testing`: random weights that leave nothing dead, comparisons, and the tiny encoders."""

from __future__ import annotations

import builtins
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sgld.api.errors import UserError
from sgld.testing import encoders
from sgld.testing.parity import ParityTable, relative_l2
from sgld.testing.randomness import reinitialise


class Block(nn.Module):
    def __init__(self, *, swapped: bool = False) -> None:
        super().__init__()
        parts = {
            "linear": nn.Linear(400, 100),
            "conv": nn.Conv3d(8, 64, (3, 3, 3)),
            "norm": nn.LayerNorm(500),
        }
        for name in reversed(parts) if swapped else parts:
            self.add_module(name, parts[name])
        self.table = nn.Parameter(torch.zeros(1, 6, 100))
        self.gamma = nn.Parameter(torch.zeros(400, 1, 1, 1))
        self.batch = nn.BatchNorm2d(300)


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_scale_follows_the_kind_of_parameter() -> None:
    module = reinitialise(Block(), seed=3)
    state = values(module)
    expected = {
        "linear.weight": (0.0, 1 / math.sqrt(400)),
        "linear.bias": (0.0, 0.05),
        "conv.weight": (0.0, 1 / math.sqrt(8 * 27)),
        "norm.weight": (1.0, 0.1),
        "norm.bias": (0.0, 0.05),
        "table": (0.0, 0.25),
        "gamma": (1.0, 0.1),
        "batch.running_mean": (0.0, 0.1),
    }
    for name, (mean, std) in expected.items():
        assert float(state[name].std()) == pytest.approx(std, rel=0.2), name
        assert float(state[name].mean()) == pytest.approx(mean, abs=std / 3), name
    assert (state["batch.running_var"] >= 1).all()
    assert state["batch.running_var"].std() > 0.01
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_same_seed_same_weights_whatever_the_order() -> None:
    first, second = values(reinitialise(Block(), 3)), values(reinitialise(Block(swapped=True), 3))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("other", [4, 3 + 2**32, 0])
def test_another_seed_changes_every_parameter(other: int) -> None:
    first, second = reinitialise(Block(), 3), reinitialise(Block(), other)
    pairs = zip(first.named_parameters(), second.parameters(), strict=True)
    assert not [name for (name, a), b in pairs if torch.equal(a, b)]


def test_tensors_of_one_shape_differ() -> None:
    module = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    reinitialise(module, 0)
    assert not torch.equal(module[0].weight, module[1].weight)  # pyright: ignore


def test_half_precision_modules_keep_their_precision() -> None:
    module = reinitialise(nn.Linear(8, 8, dtype=torch.bfloat16), 0)
    assert module.weight.dtype is torch.bfloat16
    assert module.weight.float().std() > 0.1


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 9.0], [3.0, 4.0], 1.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0, 0.0], [0.0, 0.0], math.nan),
        ([math.nan, 4.0], [3.0, 4.0], math.nan),
        ([3.0, 4.0], [3.0, math.inf], math.nan),
        (2.0, 1.0, 1.0),
    ],
)
def test_relative_l2(actual: Any, expected: Any, error: float) -> None:
    for convert in (np.asarray, torch.tensor):
        assert relative_l2(convert(actual), convert(expected)) == pytest.approx(error, nan_ok=True)


def test_relative_l2_reads_half_precision_and_refuses_other_shapes() -> None:
    ones = torch.ones(3, dtype=torch.bfloat16)
    assert relative_l2(ones * 2, np.ones(3)) == 1.0
    with pytest.raises(ValueError, match="shapes differ"):
        relative_l2(torch.ones(3), torch.ones(3, 1))


def test_table_prints_rows_and_fails_above_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    table = ParityTable("toy")
    assert table.check("same", [1.0], [1.0], 1e-4) == 0.0
    for bad in ([2.0], [math.nan]):
        with pytest.raises(AssertionError, match="FAILED"):
            table.check("other", bad, [1.0], 1e-4)
    printed = capsys.readouterr().out
    assert [line.split()[1:3] for line in printed.splitlines()] == [
        ["toy:", "same"],
        ["toy:", "other"],
        ["toy:", "other"],
    ]
    assert "ok" in printed
    assert str(table) == printed.strip()
    assert [row.passed for row in table.rows] == [True, False, False]


def test_tokenizer_is_the_one_transformers_builds(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    encoders.write_character_tokenizer(tmp_path / "ours", max_length=77)
    ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    letters = [(chr(code), -3.0) for code in range(33, 127)]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    theirs = transformers.T5Tokenizer(vocab=special + letters, extra_ids=0, model_max_length=77)
    assert (ours.model_max_length, len(ours)) == (77, 98)
    for text in ("", "a", "Hello  wörld", "  two\nlines\t", "<pad> </s>", "日本 ~!", "x" * 90):
        options = {"padding": "max_length", "max_length": 77, "truncation": True}
        assert dict(ours(text, **options)) == dict(theirs(text, **options)), text
    assert ours("Hi").input_ids == [3, 43, 76, 1]


def test_tiny_encoders_answer_to_every_token_and_pixel() -> None:
    pytest.importorskip("transformers")
    text, image = encoders.tiny_text_encoder(1), encoders.tiny_vision_encoder(1, hidden_size=80)
    ids = torch.tensor([[3, 43, 76, 1]])
    hidden = text(ids).last_hidden_state
    assert hidden.shape == (1, 4, 32)
    for position in range(4):
        changed = ids.clone()
        changed[0, position] = 50
        assert relative_l2(text(changed).last_hidden_state[0, 0], hidden[0, 0]) > 1e-3
    pixels = torch.zeros(1, 3, 32, 32)
    base = image(pixels).last_hidden_state
    assert base.shape == (1, 17, 80)
    for channel in range(3):
        lit = pixels.clone()
        lit[0, channel, 9, 30] = 1
        assert relative_l2(image(lit).last_hidden_state, base) > 1e-3


def test_missing_transformers_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match="'transformers', which is not installed"):
        encoders.tiny_text_encoder(0)
    # The tokenizer and the image settings need no package at all.
    encoders.write_character_tokenizer(tmp_path)
    encoders.write_image_processor(tmp_path, 32)
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["resample"] == 3
