"""diffusers' image pipelines on the very tensors that an sgld model holds.

`Flux1(model)`, `Klein(model)` and `Sana(model)` are each called with the parameters of a request
and a clock, make the picture of seed 0 in the stages text, denoise and decode, and return the final
latents in the layout of sgld. The transformer is diffusers' own class; the text encoders and the
VAE are the library modules that sgld's wrappers hold.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from side_by_side import PROMPT, Clock, Sgld, fresh, twin


class Twin:
    """A pipeline; families say how it is built and how each stage is called."""

    transformer: ClassVar[str]
    pipeline: ClassVar[str]
    scheduler: ClassVar[str] = "FlowMatchEulerDiscreteScheduler"

    def __init__(self, model: Sgld) -> None:
        import diffusers

        self.model, self.device = model, model.device
        network = getattr(diffusers, self.transformer)
        self.pipe: Any = getattr(diffusers, self.pipeline)(
            transformer=twin(network, model.config("transformer"), model.modules["transformer"]),
            vae=model.modules["vae"].model,
            scheduler=getattr(diffusers, self.scheduler).from_config(
                dict(model.parts["scheduler"])
            ),
            **self.others(),
        )
        self.pipe.set_progress_bar_config(disable=True)

    @torch.no_grad()
    def __call__(self, params: Any, clock: Clock) -> torch.Tensor:
        """One picture; the final latents as float32."""
        self.pipe.scheduler = fresh(self.pipe.scheduler)
        noise = self.noise(params)
        with clock.total():
            text = self.text(params)
            clock.mark("text")
            final = self.pipe(
                **text,
                height=params.height,
                width=params.width,
                num_inference_steps=params.num_inference_steps,
                guidance_scale=params.guidance_scale,
                latents=noise,
                output_type="latent",
                **self.settings(),
            ).images
            clock.mark("denoise")
            pixels = self.pipe.vae.decode(self.decodable(final, params), return_dict=False)[0]
            clock.mark("decode")
            self.pipe.image_processor.postprocess(pixels, output_type="np")
        return self.latents(final).float()

    def drawn(self, *shape: int) -> torch.Tensor:
        """The noise of seed 0, as sgld draws it."""
        generator = torch.Generator("cpu").manual_seed(0)
        return torch.randn(shape, generator=generator).to(self.device)

    def others(self) -> dict[str, Any]:
        """What else the pipeline is made of."""
        return {
            "tokenizer": self.model.parts["tokenizer"],
            "text_encoder": self.model.modules["text_encoder"].model,
        }

    def settings(self) -> dict[str, Any]:
        """What else the pipeline is called with."""
        return {}

    def noise(self, params: Any) -> torch.Tensor:
        """The starting latents, as the pipeline takes them."""
        raise NotImplementedError

    def text(self, params: Any) -> dict[str, torch.Tensor]:
        """The prompt's embeddings, by their names in the pipeline's call."""
        raise NotImplementedError

    def decodable(self, final: torch.Tensor, params: Any) -> torch.Tensor:
        """What the pipeline returned, as the VAE takes it."""
        raise NotImplementedError

    def latents(self, final: torch.Tensor) -> torch.Tensor:
        """What the pipeline returned, in the layout of sgld's latents."""
        return final


class Flux1(Twin):
    """FLUX.1: packed latents in the transformer's precision."""

    transformer, pipeline = "FluxTransformer2DModel", "FluxPipeline"

    def others(self) -> dict[str, Any]:
        return {
            **super().others(),
            "tokenizer_2": self.model.parts["tokenizer_2"],
            "text_encoder_2": self.model.modules["text_encoder_2"].model,
        }

    def noise(self, params: Any) -> torch.Tensor:
        channels, stride = self.pipe.transformer.config.in_channels // 4, self.pipe.vae_scale_factor
        rows, columns = params.height // stride, params.width // stride
        drawn = self.drawn(1, channels, rows, columns).to(self.pipe.transformer.dtype)
        return self.pipe._pack_latents(drawn, 1, channels, rows, columns)

    def text(self, params: Any) -> dict[str, torch.Tensor]:
        states, pooled, _ = self.pipe.encode_prompt(
            PROMPT, None, device=self.device, max_sequence_length=params.max_sequence_length
        )
        return {"prompt_embeds": states, "pooled_prompt_embeds": pooled}

    def decodable(self, final: torch.Tensor, params: Any) -> torch.Tensor:
        pipe, config = self.pipe, self.pipe.vae.config
        whole = pipe._unpack_latents(final, params.height, params.width, pipe.vae_scale_factor)
        return (whole / config.scaling_factor + config.shift_factor).to(pipe.vae.dtype)


class Klein(Twin):
    """FLUX.2 klein. Its language model is cut behind the last layer that is read, as sgld's is:
    diffusers alone would run, and hold, a quarter more."""

    transformer, pipeline = "Flux2Transformer2DModel", "Flux2KleinPipeline"

    def others(self) -> dict[str, Any]:
        tokenizer = self.model.parts["tokenizer"]._tokenizer
        return {**super().others(), "tokenizer": tokenizer, "is_distilled": True}

    def noise(self, params: Any) -> torch.Tensor:
        stride = 2 * self.pipe.vae_scale_factor
        channels = self.pipe.transformer.config.in_channels
        return self.drawn(1, channels, params.height // stride, params.width // stride)

    def text(self, params: Any) -> dict[str, torch.Tensor]:
        states, _ = self.pipe.encode_prompt(
            PROMPT, device=self.device, max_sequence_length=params.max_sequence_length
        )
        return {"prompt_embeds": states}

    def decodable(self, final: torch.Tensor, params: Any) -> torch.Tensor:
        return final.to(self.pipe.vae.dtype)

    def latents(self, final: torch.Tensor) -> torch.Tensor:
        # The pipeline has already put them into the scale of the VAE, in 2x2 patches undone.
        norm, eps = self.pipe.vae.bn, self.pipe.vae.config.batch_norm_eps
        mean = norm.running_mean.float().view(1, -1, 1, 1)
        deviation = torch.sqrt(norm.running_var.float().view(1, -1, 1, 1) + eps)
        return (self.pipe._patchify_latents(final.float()) - mean) / deviation


class Sana(Twin):
    """SANA 1.0 and 1.5: both passes of guidance in one batch, float32 latents."""

    transformer, pipeline = "SanaTransformer2DModel", "SanaPipeline"
    scheduler = "DPMSolverMultistepScheduler"

    def settings(self) -> dict[str, Any]:
        return {"use_resolution_binning": False, "negative_prompt": None}

    def noise(self, params: Any) -> torch.Tensor:
        channels, stride = self.pipe.transformer.config.in_channels, self.pipe.vae_scale_factor
        return self.drawn(1, channels, params.height // stride, params.width // stride)

    def text(self, params: Any) -> dict[str, torch.Tensor]:
        call = inspect.signature(type(self.pipe).__call__).parameters
        found = self.pipe.encode_prompt(
            PROMPT,
            params.guidance_scale > 1,
            negative_prompt=params.negative_prompt,
            device=self.device,
            max_sequence_length=params.max_sequence_length,
            complex_human_instruction=call["complex_human_instruction"].default,
        )
        names = ("prompt_embeds", "prompt_attention_mask")
        return dict(zip((*names, *(f"negative_{name}" for name in names)), found, strict=True))

    def decodable(self, final: torch.Tensor, params: Any) -> torch.Tensor:
        return final.to(self.pipe.vae.dtype) / self.pipe.vae.config.scaling_factor
