"""Norm and SiLU of the VAE go through one op, and numbers stay those of diffusers to the bit."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from torch import Tensor, nn

from sgld.ops import Ops, norm
from sgld.testing.randomness import reinitialise
from sgld_wan import configs
from sgld_wan.models.vae import Vae
from sgld_wan.models.vae_norm import NormSilu

CONFIGS = {
    "2.1": configs.vae_21_config(base_dim=8),
    "2.2": configs.vae_22_config(base_dim=8, decoder_base_dim=8),
}


def vae(layout: str, ops: Ops | None = None) -> Vae:
    """Random weights, the same each time."""
    model = Vae(CONFIGS[layout], ops=ops)
    reinitialise(model, seed=3)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", CONFIGS)
def test_same_bits(layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = vae(layout)
    monkeypatch.setattr("sgld_wan.models.vae.fuse_norms", lambda model, ops: None)
    theirs = vae(layout)
    assert not [module for module in theirs.modules() if isinstance(module, NormSilu)]
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for parameter in [*ours.parameters(), *theirs.parameters()]:
        parameter.data = parameter.to(dtype)
    random = torch.Generator().manual_seed(1)
    latents = torch.randn(1, ours.model.config.z_dim, 2, 2, 3, generator=random).to(dtype)
    with torch.inference_mode():
        frames = ours.decode(latents)
        assert torch.equal(frames, theirs.decode(latents))
        assert torch.equal(ours.encode(frames), theirs.encode(frames))


@pytest.mark.parametrize("layout", CONFIGS)
def test_every_norm_with_a_silu_is_the_op(layout: str) -> None:
    called: list[tuple[int, ...]] = []

    def counted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        called.append(tuple(x.shape))
        return norm.channel_rms_silu(x, weight, eps)

    ours = vae(layout, Ops.torch().replace({"norm.channel_rms_silu": counted}))
    decoder = ours.model.decoder
    sites = [module for module in decoder.modules() if isinstance(module, NormSilu)]
    left = [name for name, module in decoder.named_modules() if type(module) is WanRMS_norm]
    assert left
    assert all(".attentions." in f".{name}." for name in left)
    assert not [module for module in ours.model.modules() if type(module) is nn.SiLU]
    with torch.inference_mode():
        ours.decode(torch.zeros(1, ours.model.config.z_dim, 1, 2, 2))
    assert len(called) == len(sites) > 10
