"""The Wan VAE of diffusers behind the methods that stages call."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from torch import nn

from sgld.api.errors import FeatureError
from sgld.ops import Ops
from sgld_wan.models.vae_conv import for_cpu
from sgld_wan.models.vae_norm import fuse_norms
from sgld_wan.models.vae_stream import History, decode_chunk, encode_chunk, new_history


class Vae(nn.Module):
    """`AutoencoderKLWan`: [B, 3, F, H, W] in -1..1 ↔ [B, C, f, h, w].

    No call leaves anything behind on the module, so several threads may call at once.
    """

    def __init__(
        self, config: Mapping[str, Any], *, tiling: bool = False, ops: Ops | None = None
    ) -> None:
        super().__init__()
        # Typed as Any: from_config is declared to return a pair as well.
        self.model: Any = AutoencoderKLWan.from_config(dict(config))
        for_cpu(self.model)
        fuse_norms(self.model, ops or Ops.torch())
        # diffusers' tiled code keeps its history on the module: one caller at a time.
        self._tiles = Lock()
        if tiling:
            self.model.enable_tiling()

    def lay_out(self) -> None:
        """Keep the weights of convolutions with channels innermost, after they are loaded.

        Activations follow the weights, and a GPU's convolutions want that order: the decoder of Wan
        2.1 takes 8 % less time on an H200 in float32 and 10 % less in bfloat16. Numbers
        differ from the other order by rounding.
        """
        for module in self.model.modules():
            if isinstance(module, nn.Conv3d):
                weight, order = module.weight, torch.channels_last_3d
            elif isinstance(module, nn.Conv2d):
                weight, order = module.weight, torch.channels_last
            else:
                continue
            weight.data = weight.data.contiguous(memory_format=order)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self.model.parameters()).dtype

    def encode(self, video: torch.Tensor) -> torch.Tensor:
        """Mode of the posterior of a video of 4k + 1 frames, not normalised."""
        if self.model.use_tiling:
            with self._tiles:
                return self.model.encode(video.to(self.dtype)).latent_dist.mode()
        return encode_chunk(self.model, video.to(self.dtype), new_history(self.model.encoder))[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Frames of latents that are already in the VAE's own scale, clamped to -1..1."""
        if self.model.use_tiling:
            with self._tiles:
                return self.model.decode(latents.to(self.dtype), return_dict=False)[0]
        return decode_chunk(self.model, latents.to(self.dtype), new_history(self.model.decoder))[0]

    def decode_chunk(
        self, latents: torch.Tensor, history: History | None = None
    ) -> tuple[torch.Tensor, History]:
        """The next frames of a stream, and its history, which the call takes over; None: the
        stream begins. See `sgld_wan.models.vae_stream.decode_chunk`."""
        self._refuse_tiles()
        if history is None:
            history = new_history(self.model.decoder)
        return decode_chunk(self.model, latents.to(self.dtype), history)

    def encode_chunk(
        self, video: torch.Tensor, history: History | None = None
    ) -> tuple[torch.Tensor, History]:
        """The next latents of a stream, and its history, which the call takes over; None: the
        stream begins. See `sgld_wan.models.vae_stream.encode_chunk`."""
        self._refuse_tiles()
        if history is None:
            history = new_history(self.model.encoder)
        return encode_chunk(self.model, video.to(self.dtype), history)

    def _refuse_tiles(self) -> None:
        if self.model.use_tiling:
            raise FeatureError(
                "--vae-tiling: a stream cannot be decoded or encoded in tiles, since every tile "
                "would need a history of its own.",
                remedy="Leave --vae-tiling out; a chunk needs little memory anyway.",
            )
