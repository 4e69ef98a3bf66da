"""The FLUX.1 network against diffusers' class, and its pieces against formulas written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sgld.api.errors import ModelError, ParameterError
from sgld.ops import Ops
from sgld.testing.parity import ParityTable, relative_l2
from sgld_flux.models import shared
from sgld_flux.models.flux1 import FluxConfig, FluxTransformer
from sgld_flux.testing import tiny_transformer

TABLE = ParityTable("flux.1 DiT")
LIMIT = 1e-5


def ours_of(theirs: Any, ops: Ops | None = None) -> FluxTransformer:
    """Our network with the same weights."""
    with torch.device("meta"):
        made = FluxTransformer(FluxConfig.from_json(dict(theirs.config)), ops or Ops.torch())
    made.load_state_dict(theirs.state_dict(), strict=True, assign=True)
    return made.eval()


def inputs(
    rows: int, columns: int, length: int, *, batch: int = 1, guided: bool = True, seed: int = 0
) -> dict[str, Any]:
    """Arguments of our forward; every row has its own time and guidance."""
    draw = torch.Generator().manual_seed(seed)
    values: dict[str, Any] = {
        "hidden_states": torch.randn(batch, rows * columns, 64, generator=draw),
        "timestep": torch.rand(batch, generator=draw) * 1000,
        "encoder_hidden_states": torch.randn(batch, length, 32, generator=draw),
        "pooled_projections": torch.randn(batch, 24, generator=draw),
        "rows": rows,
        "columns": columns,
    }
    if guided:
        values["guidance"] = 1 + 6 * torch.rand(batch, generator=draw)
    return values


@torch.no_grad()
def reference(theirs: Any, given: dict[str, Any]) -> torch.Tensor:
    """diffusers' forward on the same inputs, in its own precision."""
    rows, columns = given["rows"], given["columns"]
    dtype = theirs.x_embedder.weight.dtype
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1] += torch.arange(rows)[:, None]
    ids[..., 2] += torch.arange(columns)[None]
    return theirs(
        hidden_states=given["hidden_states"].to(dtype),
        timestep=given["timestep"].to(dtype) / 1000,
        guidance=given.get("guidance"),
        encoder_hidden_states=given["encoder_hidden_states"].to(dtype),
        pooled_projections=given["pooled_projections"].to(dtype),
        img_ids=ids.reshape(-1, 3).to(dtype),
        txt_ids=torch.zeros(given["encoder_hidden_states"].shape[1], 3, dtype=dtype),
        return_dict=False,
    )[0]


@pytest.fixture(scope="module")
def dev() -> Any:
    return tiny_transformer(5, guided=True)


CASES = [(3, 4, 7, 1), (1, 1, 1, 1), (1, 20, 5, 2), (9, 2, 77, 3), (16, 16, 512, 1)]


@pytest.mark.parity
@pytest.mark.parametrize(("rows", "columns", "length", "batch"), CASES)
@pytest.mark.parametrize("guided", [True, False])
def test_forward(rows: int, columns: int, length: int, batch: int, guided: bool, dev: Any) -> None:
    theirs = dev if guided else tiny_transformer(6, guided=False)
    given = inputs(rows, columns, length, batch=batch, guided=guided)
    found = ours_of(theirs)(**given)
    name = f"{'dev' if guided else 'schnell'} {rows}x{columns}, {length} text, {batch} rows"
    TABLE.check(name, found, reference(theirs, given), LIMIT)


def test_written_out_attention_gives_the_same(dev: Any) -> None:
    given = inputs(3, 5, 9, batch=2)
    found = ours_of(dev, Ops.reference())(**given)
    assert relative_l2(found, reference(dev, given)) < LIMIT


@pytest.mark.parity
@pytest.mark.parametrize("guided", [True, False])
def test_bfloat16_is_no_further_from_float32_than_the_reference(guided: bool) -> None:
    theirs = tiny_transformer(7, guided=guided)
    given = inputs(8, 8, 40, batch=4, guided=guided)
    exact = reference(theirs, given)
    half = tiny_transformer(7, guided=guided).to(torch.bfloat16)
    reached = reference(half, given).float()
    found = ours_of(half)(**given).float()
    own, other = relative_l2(found, exact), relative_l2(reached, exact)
    between = relative_l2(found, reached)
    print(f"bf16 to fp32: ours {own:.3e}, diffusers {other:.3e}; to each other {between:.3e}")
    assert own <= 1.1 * other
    assert between <= other


def test_rows_of_a_batch_do_not_meet(dev: Any) -> None:
    ours, given = ours_of(dev), inputs(4, 4, 6, batch=3)
    whole = ours(**given)
    for row in range(3):
        alone = {
            name: value[row : row + 1] if isinstance(value, torch.Tensor) else value
            for name, value in given.items()
        }
        assert relative_l2(ours(**alone), whole[row : row + 1]) < LIMIT


@pytest.mark.parametrize("name", ["timestep", "guidance", "encoder_hidden_states",
                                  "pooled_projections", "hidden_states"])  # fmt: skip
def test_every_input_moves_the_result(name: str, dev: Any) -> None:
    ours, given = ours_of(dev), inputs(4, 4, 6)
    before = ours(**given)
    given[name] = given[name] * 0.5 + 0.1
    assert relative_l2(ours(**given), before) > 1e-3


# Rounded by hand: bfloat16 has 8 digits, so its steps are 4 in 512..1024 and 2^-8 in 0.5..1.
# 953.7 → 952; 952/1000 → 0.953125 (244·2^-8); 953.125 → 952. 700 → 700; 0.7 → 0.69921875; 700.
# 759.511 → 760; 0.76 → 0.76171875 (195·2^-8); 761.72 → 760.
@pytest.mark.parametrize(
    ("time", "seen"), [(953.7, 952.0), (759.511, 760.0), (700.0, 700.0), (1000.0, 1000.0)]
)
def test_time_is_rounded_as_in_the_reference(time: float, seen: float) -> None:
    found = shared.rounded_thousands(torch.tensor([time]), torch.bfloat16, divided=True)
    assert found.tolist() == [seen]


def test_guidance_is_rounded_before_the_product() -> None:
    found = shared.rounded_thousands(torch.tensor([3.5, 3.3]), torch.bfloat16)
    # 3.3 → 3.296875 (211·2^-6), and 3296.875 → 3296 in steps of 16.
    assert found.tolist() == [3504.0, 3296.0]


def test_sinusoid_is_cosines_then_sines() -> None:
    found = shared.sinusoid(torch.tensor([3.0]), 4)
    wanted = [np.cos(3.0), np.cos(0.03), np.sin(3.0), np.sin(0.03)]
    assert np.allclose(found.numpy(), [wanted], atol=1e-6)


def test_packing_order() -> None:
    """A token holds a 2×2 patch of every channel: channel slowest, then sub-row, then column."""
    latents = torch.arange(2 * 4 * 6).view(1, 2, 4, 6)
    tokens = shared.pack(latents)
    assert tokens.shape == (1, 6, 8)
    assert tokens[0, 0].tolist() == [0, 1, 6, 7, 24, 25, 30, 31]
    assert tokens[0, 1].tolist() == [2, 3, 8, 9, 26, 27, 32, 33]
    assert tokens[0, 3].tolist() == [12, 13, 18, 19, 36, 37, 42, 43]
    assert torch.equal(shared.unpack(tokens, 2, 3), latents)


def test_position_tables_follow_the_ids() -> None:
    ids = shared.grid_ids(2, 3, axes=3, first=4)
    assert ids.tolist() == [[4, r, c] for r in range(2) for c in range(3)]
    cos, sin = shared.position_table(ids, (4, 2, 6), 10000.0, "cpu")
    assert cos.shape == sin.shape == (6, 6)
    angles = [4, 4 * 10000**-0.5, 1, 2, 2 * 10000 ** (-1 / 3), 2 * 10000 ** (-2 / 3)]
    assert np.allclose(cos[5].numpy(), np.cos(angles), atol=1e-6)
    assert np.allclose(sin[5].numpy(), np.sin(angles), atol=1e-6)


def test_tables_of_few_sizes_are_kept() -> None:
    tables, made = shared.PositionTables((2,), 10000.0), []

    def ids(size: int) -> Any:
        made.append(size)
        return torch.zeros(size, 1)

    device = torch.device("cpu")
    for size in (*range(1, 9), 1, 9, 2, 1):
        cos, _ = tables.of(size, lambda size=size: ids(size), device)
        assert cos.shape[0] == size
    # The ninth size pushes out the second, the one that was not asked for longest.
    assert made == [1, 2, 3, 4, 5, 6, 7, 8, 9, 2]


def test_per_head_norm_is_of_each_head_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 8, generator=draw, dtype=torch.float64)
    weight = torch.rand(4, generator=draw, dtype=torch.float64)
    cos, sin = torch.full((3, 2), 0.6), torch.full((3, 2), 0.8)
    found = Ops.reference()["norm.head_rms_rope"](x, weight, cos, sin, 2, 0.0)
    heads = x.view(2, 3, 2, 4)
    normed = heads / heads.square().mean(-1, keepdim=True).sqrt() * weight
    even, odd = normed[..., ::2], normed[..., 1::2]
    wanted = torch.stack((0.6 * even - 0.8 * odd, 0.8 * even + 0.6 * odd), -1).flatten(-2)
    assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ({"rows": 5}, "hidden_states", "must be [B, 20, 64]"),
        ({"rows": 0}, "rows", "must be 1 to 1024"),
        ({"timestep": torch.zeros(2)}, "timestep", "must be [1]"),
        ({"guidance": None}, "guidance", "must be given"),
        ({"guidance": torch.zeros(3)}, "guidance", "must be [1]"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(
    change: dict[str, Any], field: str, text: str, dev: Any
) -> None:
    with pytest.raises(ParameterError) as caught:
        ours_of(dev)(**{**inputs(4, 4, 3), **change})
    found = {problem.field: problem.message for problem in caught.value.problems}
    assert text in found[field]


def test_guidance_is_refused_without_its_embedding() -> None:
    with pytest.raises(ParameterError, match="takes no guidance"):
        ours_of(tiny_transformer(6, guided=False))(**inputs(2, 2, 3))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"in_channels": 384, "out_channels": 64}, "filling"),
        ({"axes_dims_rope": [16, 16, 16]}, "add up to attention_head_dim=128"),
        ({"patch_size": 2}, "patch_size=2"),
        ({"pooled_projection_dims": 3}, "pooled_projection_dims=3: unknown key"),
    ],
)
def test_configurations_of_other_networks_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        FluxConfig.from_json({"_class_name": "FluxTransformer2DModel", **change})


def test_layers_are_in_the_order_they_run(dev: Any) -> None:
    ours, seen = ours_of(dev), []
    layers = ours.layer_groups()
    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, index=index: seen.append(index))
    ours(**inputs(2, 2, 3))
    assert seen == list(range(4)) == list(range(len(layers)))
