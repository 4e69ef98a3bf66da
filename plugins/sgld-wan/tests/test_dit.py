"""The Wan denoiser against diffusers' `WanTransformer3DModel` on small random networks.

Every parameter is random, tables, gates and norms included, so that no path is silently zero.
`-m parity -rA` prints one row per comparison: variant, what, relative L2.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sgld.api.errors import ParameterError
from sgld.ops import Ops
from sgld.testing.host_sync import no_host_sync
from sgld_wan.models.dit import WanConfig, WanTransformer, keep_fp32, token_grid

SMALL: dict[str, Any] = {
    "patch_size": [1, 2, 2],
    "num_attention_heads": 3,
    "attention_head_dim": 20,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 24,
    "freq_dim": 32,
    "ffn_dim": 84,
    "num_layers": 3,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
    "image_dim": None,
    "added_kv_proj_dim": None,
    "rope_max_seq_len": 1024,
    "pos_embed_seq_len": None,
}
CLIP = {"in_channels": 36, "image_dim": 28, "added_kv_proj_dim": 60}


class Variant(NamedTuple):
    """What differs from a text-to-video network, and the shape of one row's image states."""

    changes: dict[str, Any]
    images: int = 0
    image_tokens: int = 0
    per_token: bool = False


VARIANTS = {
    "2.1 T2V": Variant({}),
    "2.1 I2V": Variant(CLIP, 1, 257),
    "2.1 FLF2V": Variant({**CLIP, "pos_embed_seq_len": 514}, 2, 257),
    "2.2 T2V A14B": Variant({"num_attention_heads": 2, "attention_head_dim": 32}),
    "2.2 I2V A14B": Variant({"in_channels": 36}),
    "2.2 TI2V 5B": Variant({"in_channels": 48, "out_channels": 48}, per_token=True),
    "no cross norm": Variant({"cross_attn_norm": False}),
}
SIZES = ((1, 6, 10), (3, 2, 6), (5, 6, 4))
"""Latent frames, rows, columns: odd token counts, not square, one frame."""


class Inputs(NamedTuple):
    """Arguments of one forward pass, in its order."""

    latent: Tensor
    timestep: Tensor
    text: Tensor
    image: Tensor | None

    def rows(self, row: int) -> Inputs:
        """The inputs of one row alone."""
        image = self.image
        if image is not None:
            image = image.unflatten(0, (len(self.latent), -1))[row]
        part = slice(row, row + 1)
        return Inputs(self.latent[part], self.timestep[part], self.text[part], image)

    def to(self, dtype: torch.dtype) -> Inputs:
        """The inputs in another dtype; times stay as they are."""
        image = None if self.image is None else self.image.to(dtype)
        return Inputs(self.latent.to(dtype), self.timestep, self.text.to(dtype), image)


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def record(variant: str, what: str, value: float) -> None:
    print(f"{variant:14} {what:34} {value:.2e}")


@cache
def theirs(variant: str) -> nn.Module:
    from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

    model = WanTransformer3DModel(**{**SMALL, **VARIANTS[variant].changes}).eval()
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        deviation = 0.3 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
        if "table" in name or "pos_embed" in name:
            deviation = 0.5
        parameter.data = torch.randn(parameter.shape, generator=generator) * deviation
        if "norm" in name and name.endswith("weight"):
            parameter.data += 1
    return model.requires_grad_(False)


def built(variant: str, ops: Ops | None = None) -> WanTransformer:
    """Our network with the same weights, built the way the loader builds it."""
    config = WanConfig.from_json({**SMALL, **VARIANTS[variant].changes})
    with torch.device("meta"):
        model = WanTransformer(config, Ops.torch() if ops is None else ops)
    model.load_state_dict(theirs(variant).state_dict(), strict=True, assign=True)
    return model.eval()


def make(variant: str, size: tuple[int, int, int], batch: int) -> Inputs:
    config = WanConfig.from_json({**SMALL, **VARIANTS[variant].changes})
    kind = VARIANTS[variant]
    generator = torch.Generator().manual_seed(batch)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    timestep = torch.tensor([999.0, 437.25, 3.0])[:batch]
    if kind.per_token:
        frames, rows, columns = token_grid(config, *size)
        timestep = timestep[:, None].repeat(1, frames * rows * columns)
        timestep[:, : rows * columns] = 0  # the given first frame is clean
    image = None
    if kind.images:
        image = draw(batch * kind.images, kind.image_tokens, CLIP["image_dim"])
    return Inputs(draw(batch, config.in_channels, *size), timestep, draw(batch, 512, 24), image)


def halved(model: nn.Module) -> nn.Module:
    """A copy in bfloat16 with the float32 islands of the reference."""
    model = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        if not keep_fp32(name):
            parameter.data = parameter.data.bfloat16()
    return model


@pytest.mark.parity
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_equals_diffusers(variant: str, size: tuple[int, int, int], batch: int) -> None:
    inputs = make(variant, size, batch)
    wanted = theirs(variant)(*inputs, return_dict=False)[0]
    found = built(variant)(*inputs)
    difference = relative(found, wanted)
    record(variant, f"fp32 {size} batch {batch}", difference)
    assert found.shape == wanted.shape
    assert found.dtype == torch.float32
    assert difference <= 1e-5


@pytest.mark.parity
@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_is_no_further_from_float32_than_diffusers(variant: str) -> None:
    inputs = make(variant, (3, 6, 10), 2)
    wanted = theirs(variant)(*inputs, return_dict=False)[0]
    half = inputs.to(torch.bfloat16)
    reference = halved(theirs(variant))(*half, return_dict=False)[0]
    found = halved(built(variant))(*half)
    assert found.dtype == torch.bfloat16
    ours, others = relative(found, wanted), relative(reference, wanted)
    record(variant, "bf16 to fp32, diffusers", others)
    record(variant, "bf16 to fp32, ours", ours)
    record(variant, "bf16, ours to diffusers", relative(found, reference))
    assert 1e-4 < others < 3e-2
    assert ours <= 1.1 * others


@pytest.mark.parity
@pytest.mark.parametrize("variant", VARIANTS)
def test_explicit_references_agree_with_torch_kernels(variant: str) -> None:
    inputs = make(variant, (3, 6, 4), 2)
    difference = relative(built(variant, Ops.reference())(*inputs), built(variant)(*inputs))
    record(variant, "Ops.reference to Ops.torch", difference)
    assert difference <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_at_different_steps_equal_their_solo_runs(variant: str) -> None:
    inputs = make(variant, (3, 6, 4), 3)
    model = built(variant)
    together = model(*inputs)
    for row in range(3):
        assert relative(together[row : row + 1], model(*inputs.rows(row))) <= 1e-5


def test_times_per_frame_equal_times_per_token_and_per_row() -> None:
    latent, timestep, text, image = make("2.2 TI2V 5B", (5, 6, 4), 2)
    model = built("2.2 TI2V 5B")
    per_token = model(latent, timestep, text, image)
    per_frame = model(latent, timestep[:, ::6], text, image)
    assert relative(per_frame, per_token) <= 1e-6
    everywhere = model(latent, timestep[:, -1:].expand(-1, 30), text)
    per_row = model(latent, timestep[:, -1], text)
    assert relative(per_row, everywhere) <= 1e-6
    assert relative(per_row, per_token) > 1e-3, "the clean first frame must make a difference"


def test_many_groups_take_the_lean_path_with_the_same_result() -> None:
    latent, timestep, text, _ = make("2.2 TI2V 5B", (3, 12, 12), 1)
    assert timestep.shape[1] == 108 > 64
    model = built("2.2 TI2V 5B")
    assert relative(model(latent, timestep, text), model(latent, timestep[:, ::36], text)) <= 1e-6


@pytest.mark.parametrize("length", [1, 77, 512])
def test_any_text_length(length: int) -> None:
    latent, timestep, text, image = make("2.1 I2V", (1, 6, 10), 1)
    model = built("2.1 I2V")
    short = model(latent, timestep, text[:, :length], image)
    assert bool(short.isfinite().all())
    # Text of other length gives another result, but the image is never taken for text.
    assert (relative(short, model(latent, timestep, text, image)) < 1e-6) == (length == 512)


def test_first_and_last_frame_as_one_sequence_or_as_two_rows() -> None:
    latent, timestep, text, image = make("2.1 FLF2V", (1, 6, 10), 2)
    assert image is not None
    model = built("2.1 FLF2V")
    joined = image.reshape(2, 514, -1)
    assert torch.equal(model(latent, timestep, text, joined), model(latent, timestep, text, image))


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameter_names_equal_diffusers(variant: str) -> None:
    wanted = {name: value.shape for name, value in theirs(variant).state_dict().items()}
    assert {name: value.shape for name, value in built(variant).state_dict().items()} == wanted


@pytest.mark.parity
@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_islands_equal_diffusers(variant: str) -> None:
    from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

    words = WanTransformer3DModel._keep_in_fp32_modules
    for name in built(variant).state_dict():
        assert keep_fp32(name) == any(word in name.split(".") for word in words), name
    assert WanTransformer.keep_fp32("blocks.0.norm2.weight")
    assert not keep_fp32("blocks.0.attn1.norm_q.weight")


def test_meta_build_needs_no_buffers_and_no_gradients() -> None:
    config = WanConfig.from_json(SMALL)
    with torch.device("meta"):
        model = WanTransformer(config, Ops.torch())
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not list(model.buffers())
    model = built("2.1 T2V")
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert list(model.layer_groups()) == list(model.blocks)
    assert not model(*make("2.1 T2V", (1, 2, 2), 1)).is_inference()


def test_rotary_tables_are_kept_for_the_last_sizes_only() -> None:
    model = built("2.1 T2V")
    device = torch.device("cpu")
    first = model.rotary(1, 1, 1, device)
    assert model.rotary(1, 1, 1, device)[0] is first[0]
    for frames in range(2, 9):
        model.rotary(frames, 1, 1, device)
    assert model.rotary(1, 1, 1, device)[0] is first[0], "used last, so not the oldest"
    model.rotary(9, 1, 1, device)
    assert len(model._rotary) == 8
    assert (2, 1, 1, device) not in model._rotary


def test_the_residual_stream_and_the_inputs_are_not_written_to() -> None:
    model = built("2.1 I2V")
    inputs = make("2.1 I2V", (3, 6, 4), 2)
    kept = [copy.deepcopy(value) for value in inputs]
    streams: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        streams.append((output, output.clone()))

    for block in model.layer_groups():
        block.register_forward_hook(keep)
    model(*inputs)
    assert len(streams) == 3
    assert all(torch.equal(held, copied) for held, copied in streams)
    for value, before in zip(inputs, kept, strict=True):
        assert value is not None
        assert before is not None
        assert torch.equal(value, before)


OPS = {
    "activation.gelu_tanh",
    "attention.cross",
    "attention.self",
    "norm.layer",
    "norm.layer_modulate",
    "norm.rms",
    "norm.rms_rope",
    "residual.gate",
    "residual.gate_layer",
    "residual.gate_layer_modulate",
}
"""What Wan asks of the table; the other ops are other families'."""


def test_every_op_that_a_kernel_may_replace_is_asked_for() -> None:
    seen: set[str] = set()

    def watch(name: str, op: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.add(name)
            return op(*args, **kwargs)

        return call

    watched = Ops.torch().replace({name: watch(name, op) for name, op in Ops.torch().items()})
    for variant in ("2.1 I2V", "no cross norm"):
        built(variant, watched)(*make(variant, (1, 2, 4), 1))
    assert seen == OPS


def test_a_block_compiles_into_one_graph() -> None:
    model = built("2.1 T2V")
    inputs = make("2.1 T2V", (3, 6, 4), 2)
    wanted = model(*inputs)
    for block in model.layer_groups():
        block.compile(fullgraph=True, backend="eager")
    assert relative(model(*inputs), wanted) <= 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent": (1, 15, 3, 6, 4)}, r"hidden_states=\(1, 15, 3, 6, 4\): must be \[B, 16"),
        ({"latent": (16, 3, 6, 4)}, r"hidden_states=\(16, 3, 6, 4\): must be \[B, 16"),
        ({"latent": (1, 16, 3, 7, 4)}, r"multiples of \(1, 2, 2\)"),
        ({"latent": (1, 16, 1025, 2, 2)}, "every axis must have 1 to 1024 tokens"),
        ({"timestep": (2,)}, r"timestep=\(2,\): must be \[1\] or \[1, G\] with G dividing 18"),
        ({"timestep": (1, 4)}, r"timestep=\(1, 4\)"),
        ({"timestep": (1, 0)}, r"timestep=\(1, 0\)"),
        ({"timestep": ()}, r"timestep=\(\)"),
        ({"timestep": (1, 3, 1)}, r"timestep=\(1, 3, 1\)"),
        ({"image": (1, 257, 28)}, "this model takes no image states"),
    ],
)
def test_forward_refuses_wrong_shapes(change: dict[str, tuple[int, ...]], message: str) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "latent": (1, 16, 3, 6, 4),
        "timestep": (1,),
        "text": (1, 4, 24),
    }
    latent, timestep, text, *image = (torch.zeros(shape) for shape in {**shapes, **change}.values())
    with pytest.raises(ParameterError, match=message):
        built("2.1 T2V")(latent, timestep, text, *image)


def test_image_states_must_come_where_the_model_has_them() -> None:
    latent, timestep, text, _ = make("2.1 I2V", (1, 2, 2), 1)
    with pytest.raises(ParameterError, match="encoder_hidden_states_image: must be given"):
        built("2.1 I2V")(latent, timestep, text)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("variant", VARIANTS)
def test_cuda_forward_never_waits_for_the_device(variant: str) -> None:
    inputs = make(variant, (3, 6, 4), 2)
    wanted = built(variant)(*inputs)
    model = halved(built(variant)).cuda()
    latent, timestep, text, image = inputs
    image = None if image is None else image.cuda()
    there = Inputs(latent.cuda(), timestep.cuda(), text.cuda(), image)
    model(*there)  # the first call of a size makes the rotary tables
    with no_host_sync():
        found = model(*there)
    assert relative(found.cpu(), wanted) < 3e-2
