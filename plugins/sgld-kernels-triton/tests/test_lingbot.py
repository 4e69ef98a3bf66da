"""A whole denoiser: LingBot's tiny network over two chunks with these kernels and without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgld.api import KernelSpec
from sgld.causal.cross import CrossCache, CrossShape
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Rolling
from sgld.ops import Ops
from sgld.plugins.catalog import load_target
from sgld.testing.randomness import reinitialise
from sgld_kernels_triton.plugin import sgld_kernels

ROWS, COLUMNS, FRAMES = 4, 6, 3


def chunks(ops: Ops, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Velocities of two chunks, steered by a camera."""
    config_module = pytest.importorskip("sgld_lingbot.models.config")
    from sgld_lingbot.models.dit import ChunkCamera, LingBotTransformer
    from sgld_lingbot.testing import original_config
    from sgld_wan.models.dit import keep_fp32

    config = config_module.LingBotConfig.from_json(original_config()).wan
    model = reinitialise(LingBotTransformer(config, ops), seed=3)
    for name, parameter in model.named_parameters():
        parameter.data = parameter.to(torch.float32 if keep_fp32(name) else dtype)
    model.to(device)
    sizes = config.num_layers, config.num_attention_heads, config.attention_head_dim
    tokens = ROWS * COLUMNS // 4
    kv = KvCache(KvShape(*sizes, tokens, dtype, device), Rolling(6, 0))
    cross = CrossCache(CrossShape(*sizes, 7, dtype, device))
    random = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype).to(device)

    text, found = noise(1, 7, config.text_dim), []
    for _ in range(2):
        latents = noise(1, config.in_channels, FRAMES, ROWS, COLUMNS)
        camera = ChunkCamera(noise(1, 384, FRAMES, ROWS, COLUMNS))
        times = torch.tensor([[900.0, 500.0, 20.0]], device=device)
        kv.begin(FRAMES)
        found.append(model(latents, times, text, kv, cross, camera))
        model.remember(latents, torch.zeros_like(times), text, kv, cross, camera)
        kv.commit()
    return found


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_same_frames(device: str, dtype: torch.dtype, bound: float) -> None:
    called: set[str] = set()

    def counted(spec: KernelSpec):
        kernel = load_target(spec.target)

        def run(*args, **keywords):
            called.add(spec.op)
            return kernel(*args, **keywords)

        return run

    kernels = {spec.op: counted(spec) for spec in sgld_kernels()}
    ours = chunks(Ops.torch().replace(kernels), dtype, device)
    theirs = chunks(Ops.torch(), dtype, device)
    assert called >= {"norm.layer", "norm.layer_modulate", "norm.rms", "norm.rms_rope"}
    assert called >= {"residual.gate", "residual.gate_layer_modulate"}
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.shape == wanted.shape
        assert wanted.abs().mean() > 0.01
        error = (found.double() - wanted.double()).norm() / wanted.double().norm()
        assert error < bound
