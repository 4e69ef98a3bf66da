"""The SANA denoisers against diffusers' classes on small random networks.

Every parameter is random, tables and norms included, so that no path is silently zero.
`-m parity -rA` prints one row per comparison.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sgld.api.errors import ModelError, ParameterError
from sgld.ops import Ops
from sgld.testing.host_sync import no_host_sync
from sgld.testing.parity import ParityTable, relative_l2
from sgld.testing.randomness import reinitialise
from sgld_sana import blueprints, configs
from sgld_sana.models.config import SanaConfig, token_grid, tokens
from sgld_sana.models.dit import SanaTransformer

TABLE = ParityTable("sana dit")
RMS = configs.RMS
SMALL: dict[str, Any] = {
    "attention_head_dim": 16,
    "caption_channels": 24,
    "cross_attention_dim": 64,
    "cross_attention_head_dim": 24,
    "in_channels": 8,
    "num_attention_heads": 4,
    "num_cross_attention_heads": 3,
    "num_layers": 3,
    "out_channels": 8,
}


class Variant(NamedTuple):
    """What differs from SANA 1.0, and the sizes of latents to try."""

    changes: dict[str, Any]
    sizes: tuple[tuple[int, ...], ...] = ((5, 7), (1, 1), (3, 12))
    pinned: bool = False


CLIPS = ((3, 6, 10), (1, 2, 4), (5, 2, 2))
VIDEO = {"_class_name": "SanaVideoTransformer3DModel", "patch_size": [1, 2, 2], "qk_norm": RMS,
         "mlp_ratio": 3.0, "rope_max_seq_len": 1024}  # fmt: skip
VARIANTS = {
    "1.0": Variant({}),
    "1.5": Variant({"qk_norm": RMS}),
    "1.0 bias": Variant({"attention_bias": True, "norm_eps": 1e-3, "mlp_ratio": 1.5}),
    "2K": Variant({"interpolation_scale": 1.0, "sample_size": 5}, ((5, 5), (5, 7), (2, 3))),
    "4K": Variant({"interpolation_scale": 2.0, "sample_size": 8, "patch_size": 2}, ((4, 6),)),
    "learned sigma": Variant({"out_channels": 16}),
    "Sprint": Variant({"guidance_embeds": True, "qk_norm": RMS}),
    "Video": Variant(VIDEO, CLIPS),
    "Video I2V": Variant(VIDEO, CLIPS, pinned=True),
}


class Inputs(NamedTuple):
    """Arguments of one forward pass, in its order; `grid_time` is the reference's time."""

    latent: Tensor
    timestep: Tensor
    text: Tensor
    mask: Tensor
    guidance: Tensor | None
    grid_time: Tensor

    def ours(self) -> tuple[Tensor | None, ...]:
        return self[:5]

    def rows(self, row: int) -> tuple[Tensor | None, ...]:
        return tuple(None if part is None else part[row : row + 1] for part in self.ours())

    def to(self, dtype: torch.dtype) -> Inputs:
        guidance = None if self.guidance is None else self.guidance.to(dtype)
        return self._replace(
            latent=self.latent.to(dtype), text=self.text.to(dtype), guidance=guidance
        )


def settings(variant: str) -> dict[str, Any]:
    return configs.transformer_config(**{**SMALL, **VARIANTS[variant].changes})


@cache
def theirs(variant: str, seed: int = 7) -> nn.Module:
    from diffusers.models.transformers.sana_transformer import SanaTransformer2DModel
    from diffusers.models.transformers.transformer_sana_video import SanaVideoTransformer3DModel

    config = settings(variant)
    video = config.pop("_class_name") == "SanaVideoTransformer3DModel"
    config.pop("_diffusers_version")
    if video:
        del config["timestep_scale"]
    kind: Any = SanaVideoTransformer3DModel if video else SanaTransformer2DModel
    model = reinitialise(kind(**config), seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "table" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    return model


def built(variant: str, ops: Ops | None = None, seed: int = 7) -> SanaTransformer:
    """Our network with the same weights, built the way the loader builds it."""
    config = settings(variant)
    if VARIANTS[variant].changes.get("patch_size") == [1, 2, 2]:
        del config["timestep_scale"]
    with torch.device("meta"):
        model = SanaTransformer(SanaConfig.from_json(config), Ops.torch() if ops is None else ops)
    model.load_state_dict(theirs(variant, seed).state_dict(), strict=True, assign=True)
    return model.eval()


def make(variant: str, size: tuple[int, ...], batch: int, seed: int = 0) -> Inputs:
    kind, config = VARIANTS[variant], settings(variant)
    generator = torch.Generator().manual_seed(100 * batch + seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    timestep = torch.tensor([999.0, 437.25, 3.0])[:batch]
    guidance = None
    if config["guidance_embeds"]:
        timestep, guidance = timestep / 1000, torch.tensor([0.45, 0.1, 0.9])[:batch]
    grid_time = timestep
    if kind.pinned:
        frames, rows, columns = size[0], size[1] // 2, size[2] // 2
        moving = torch.ones(batch, frames)
        moving[:, 0] = 0
        timestep = timestep[:, None] * moving
        grid_time = timestep[:, None, :, None, None].expand(batch, 1, frames, rows, columns)
    mask = torch.ones(batch, 20, dtype=torch.int64)
    for row in range(batch):
        mask[row, 4 + 5 * row :] = 0  # other prompts are other lengths
    latent = draw(batch, config["in_channels"], *size)
    return Inputs(latent, timestep, draw(batch, 20, 24), mask, guidance, grid_time)


def reference(model: nn.Module, inputs: Inputs) -> Tensor:
    guidance = {} if inputs.guidance is None else {"guidance": inputs.guidance}
    with torch.no_grad():
        return model(
            inputs.latent,
            encoder_hidden_states=inputs.text,
            timestep=inputs.grid_time,
            encoder_attention_mask=inputs.mask,
            return_dict=False,
            **guidance,
        )[0]


CASES = [(name, size) for name, variant in VARIANTS.items() for size in variant.sizes]


@pytest.mark.parity
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("variant", "size"), CASES, ids=str)
def test_float32_equals_diffusers(variant: str, size: tuple[int, ...], batch: int) -> None:
    inputs = make(variant, size, batch)
    wanted, found = reference(theirs(variant), inputs), built(variant)(*inputs.ours())
    assert found.dtype == torch.float32
    TABLE.check(f"{variant} fp32 {size} batch {batch}", found, wanted, 1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("variant", ["1.0", "1.5", "2K", "Sprint", "Video", "Video I2V"])
def test_bfloat16_is_no_further_from_float32_than_diffusers(variant: str) -> None:
    """Over several networks: a single one's rounding errors are a matter of luck."""
    size = max(VARIANTS[variant].sizes, key=lambda sides: torch.Size(sides).numel())
    ours = others = between = 0.0
    seeds = range(4)
    for seed in seeds:
        inputs = make(variant, size, 2, seed)
        half = inputs.to(torch.bfloat16)
        model, mine = theirs(variant, seed), built(variant, seed=seed)
        rounded = copy.deepcopy(model)
        for parameter in rounded.parameters():
            parameter.data = parameter.data.bfloat16()
        for parameter in mine.parameters():
            parameter.data = parameter.data.bfloat16()
        # Both start from the same rounded weights and inputs; the exact result is theirs.
        exact = copy.deepcopy(rounded)
        for parameter in exact.parameters():
            parameter.data = parameter.data.float()
        wanted = reference(exact, half.to(torch.float32))
        found, other = mine(*half.ours()), reference(rounded, half)
        assert found.dtype == torch.bfloat16
        ours += relative_l2(found, wanted) / len(seeds)
        others += relative_l2(other, wanted) / len(seeds)
        between += relative_l2(found, other) / len(seeds)
    print(
        f"{variant:14} bf16 to fp32: diffusers {others:.2e}, ours {ours:.2e}, apart {between:.2e}"
    )
    assert 1e-4 < others < 5e-2
    assert ours <= 1.1 * others
    # The same rounding as the reference: nearer to it than it is to the exact result.
    assert between <= others


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_do_not_see_each_other(variant: str) -> None:
    inputs = make(variant, VARIANTS[variant].sizes[0], 3)
    model = built(variant)
    together = model(*inputs.ours())
    for row in range(3):
        alone = model(*inputs.rows(row))
        assert relative_l2(together[row : row + 1], alone) < 1e-5


@pytest.mark.parametrize("variant", ["1.5", "Video"])
def test_masked_text_has_no_influence_and_the_rest_has(variant: str) -> None:
    inputs = make(variant, VARIANTS[variant].sizes[0], 1)
    model = built(variant)
    before = model(*inputs.ours())
    inputs.text[:, 10:] = 100.0
    assert torch.equal(model(*inputs.ours()), before)
    inputs.text[:, 2] += 1.0
    assert relative_l2(model(*inputs.ours()), before) > 1e-3


def test_guidance_and_time_move_the_result() -> None:
    inputs = make("Sprint", (5, 7), 1)
    model = built("Sprint")
    before = model(*inputs.ours())
    assert inputs.guidance is not None
    for change in ({"guidance": inputs.guidance + 0.3}, {"timestep": inputs.timestep * 0.5}):
        assert relative_l2(model(*inputs._replace(**change).ours()), before) > 1e-2


def test_a_frame_sees_its_neighbours_in_time() -> None:
    inputs = make("Video", (3, 6, 10), 1)
    model = built("Video")
    before = model(*inputs.ours())
    inputs.latent[:, :, 2] += 1.0
    assert relative_l2(model(*inputs.ours())[:, :, 0], before[:, :, 0]) > 1e-3


@pytest.mark.parametrize("variant", ["1.0", "Video I2V"])
def test_reference_ops_and_torch_ops_agree(variant: str) -> None:
    inputs = make(variant, VARIANTS[variant].sizes[0], 2)
    found = built(variant, Ops.reference())(*inputs.ours())
    assert relative_l2(found, built(variant)(*inputs.ours())) < 1e-5


def test_what_a_kernel_may_replace() -> None:
    seen: set[str] = set()

    def watch(name: str, op: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.add(name)
            return op(*args, **kwargs)

        return call

    watched = Ops.torch().replace({name: watch(name, op) for name, op in Ops.torch().items()})
    for variant in ("1.5", "Video"):
        built(variant, watched)(*make(variant, VARIANTS[variant].sizes[0], 1).ours())
    assert seen == {
        "activation.gelu_tanh",
        "attention.masked",
        "linear_attention.relu",
        "linear_attention.relu_rope",
        "norm.layer_modulate",
        "norm.rms",
        "residual.gate",
        "residual.gate_layer_modulate",
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("variant", ["2K", "Sprint", "Video I2V"])
def test_nothing_waits_for_the_device(variant: str) -> None:
    inputs = [
        None if part is None else part.cuda()
        for part in make(variant, VARIANTS[variant].sizes[0], 2).to(torch.bfloat16).ours()
    ]
    model = copy.deepcopy(built(variant)).to("cuda", torch.bfloat16)
    wanted = model(*inputs)  # position tables are made once per size
    with no_host_sync():
        found = model(*inputs)
    assert relative_l2(found.float(), wanted.float()) < 1e-2


@pytest.mark.parametrize(
    ("variant", "change", "told"),
    [
        ("1.0", {"latent": torch.zeros(1, 7, 4, 4)}, "hidden_states=.*must be \\[B, 8, H, W\\]"),
        ("1.0", {"latent": torch.zeros(1, 8, 1, 4, 4)}, "must be \\[B, 8, H, W\\]"),
        ("Video", {"latent": torch.zeros(1, 8, 4, 4)}, "must be \\[B, 8, F, H, W\\]"),
        ("Video", {"latent": torch.zeros(1, 8, 1, 5, 4)}, "multiples of \\(1, 2, 2\\)"),
        ("1.0", {"timestep": torch.zeros(2)}, "timestep=.*must be \\[1\\]"),
        ("1.0", {"timestep": torch.zeros(1, 4)}, "G dividing 35"),
        ("1.0", {"guidance": torch.zeros(1)}, "guidance=.*takes none"),
        ("Sprint", {"guidance": None}, "guidance.*must be given"),
    ],
)
def test_inputs_that_do_not_fit_are_named(variant: str, change: Any, told: str) -> None:
    inputs = make(variant, VARIANTS[variant].sizes[0], 1)._replace(**change)
    with pytest.raises(ParameterError, match=told):
        built(variant)(*inputs.ours())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"qk_norm": "layer_norm"}, "qk_norm='layer_norm'"),
        ({"norm_elementwise_affine": True}, "norm_elementwise_affine"),
        ({"cross_attention_dim": 65}, "cross_attention_dim=65: must be 64"),
        ({"out_channels": 12}, "out_channels=12"),
        ({"num_layers": 0}, "num_layers=0: must be a positive whole number"),
        ({"num_layers": True}, "num_layers=True"),
        ({"mlp_ratio": "2.5"}, "mlp_ratio='2.5'"),
        ({"patch_size": [2, 2, 2]}, "patch_size"),
        ({"attention": "flash"}, "attention='flash': unknown key"),
        ({"video": True}, "video=True: unknown key"),
    ],
)
def test_configurations_that_are_not_computed_are_refused(change: Any, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        SanaConfig.from_json({**settings("1.0"), **change})


def test_every_wrong_key_is_told_at_once() -> None:
    with pytest.raises(ModelError) as caught:
        SanaConfig.from_json({"num_layers": -1, "patch_size": 0, "colour": 1})
    assert all(word in str(caught.value) for word in ("num_layers", "patch_size", "colour"))


def test_out_channels_may_be_left_to_in_channels() -> None:
    config = SanaConfig.from_json({**settings("1.0"), "out_channels": None})
    assert config.out_channels == 8


def test_grid_and_tokens() -> None:
    config = SanaConfig.from_json(configs.video_transformer_config())
    assert token_grid(config, 21, 60, 104) == (21, 30, 52)
    assert tokens(config, 21, 60, 104) == 32760
    assert tokens(SanaConfig.from_json(configs.transformer_config()), 1, 32, 32) == 1024


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("sana-0.6b", 0.55e9, 0.65e9),
        ("sana-1.6b", 1.5e9, 1.7e9),
        ("sana1.5-4.8b", 4.6e9, 4.9e9),
        ("sana-sprint-1.6b", 1.5e9, 1.7e9),
        ("sana-video-2b", 1.9e9, 2.2e9),
    ],
)
def test_full_sizes_have_the_published_parameters(
    name: str, low: float, high: float, tmp_path: Any
) -> None:
    import json

    blueprints.BLUEPRINTS[name](tmp_path)
    config = json.loads((tmp_path / "transformer" / "config.json").read_text())
    with torch.device("meta"):
        model = SanaTransformer(SanaConfig.from_json(config), Ops.torch())
    assert low < sum(parameter.numel() for parameter in model.parameters()) < high
