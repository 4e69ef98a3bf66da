"""Which families the fallback is checked with, and what each of them can do. Torch-free.

    FAMILIES       family id → Family
    BLUEPRINTS     family id → target that writes its tiny checkpoint

The records are data: `docs/models.md` shows them, and the plugin's parity tests check every field
of them by running the family here and in diffusers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Family(NamedTuple):
    """One family as the fallback serves it."""

    id: str
    title: str
    pipeline: str
    """Class name in `model_index.json`."""
    task: str
    multiple: int
    """Both sides are multiples of this many pixels."""
    stride: int = 0
    """A clip has `stride`·k + 1 frames; 0: pictures."""
    pictures: int = 0
    """How many input pictures a request may hold; one is needed where there may be any."""
    guidance: tuple[str, ...] = ("guidance_scale",)
    """Parameters that set the strength of guidance."""
    negative_prompt: bool = True
    also: tuple[str, ...] = ()
    """Further classes that a checkpoint of the family runs with, by `--pipeline-class-name`: each
    starts from a picture."""
    masked: tuple[str, ...] = ()
    """Such classes that also need a mask: they repaint a part of the picture."""
    refused: tuple[str, ...] = ()
    """Inputs of the pipeline that a request cannot carry; they are refused by name.
    Tensors and lists, such as `latents`, are so in every family."""


T2I, I2I, T2V, I2V = "text-to-image", "image-to-image", "text-to-video", "image-to-video"
TRUE_CFG: Final = ("true_cfg_scale",)

_ALL: Final = (
    Family(
        "qwen-image", "Qwen-Image", "QwenImagePipeline", T2I, 16, guidance=TRUE_CFG,
        also=("QwenImageImg2ImgPipeline",),
    ),
    Family(
        "qwen-image-edit", "Qwen-Image-Edit", "QwenImageEditPipeline", I2I, 16, pictures=1,
        guidance=TRUE_CFG,
    ),
    Family(
        "qwen-image-edit-plus", "Qwen-Image-Edit 2509 and later", "QwenImageEditPlusPipeline",
        I2I, 16, pictures=10, guidance=TRUE_CFG,
    ),
    Family("z-image", "Z-Image", "ZImagePipeline", T2I, 16, also=("ZImageImg2ImgPipeline",)),
    Family(
        "sd3", "Stable Diffusion 3 and 3.5", "StableDiffusion3Pipeline", T2I, 16,
        also=("StableDiffusion3Img2ImgPipeline",), masked=("StableDiffusion3InpaintPipeline",),
        refused=("ip_adapter_image",),
    ),
    Family(
        "sdxl", "Stable Diffusion XL", "StableDiffusionXLPipeline", T2I, 8,
        also=("StableDiffusionXLImg2ImgPipeline",), masked=("StableDiffusionXLInpaintPipeline",),
        refused=("ip_adapter_image",),
    ),
    Family(
        "sd15", "Stable Diffusion 1.5", "StableDiffusionPipeline", T2I, 8,
        also=("StableDiffusionImg2ImgPipeline",), masked=("StableDiffusionInpaintPipeline",),
        refused=("ip_adapter_image",),
    ),
    Family("cogview4", "CogView 4", "CogView4Pipeline", T2I, 16),
    Family("lumina2", "Lumina-Image 2.0", "Lumina2Pipeline", T2I, 16),
    Family("sana", "SANA", "SanaPipeline", T2I, 32),
    Family(
        "hunyuan-video", "HunyuanVideo", "HunyuanVideoPipeline", T2V, 16, stride=4,
        guidance=("guidance_scale", "true_cfg_scale"),
    ),
    Family("ltx-video", "LTX-Video", "LTXPipeline", T2V, 32, stride=8),
    Family(
        "ltx-image-to-video", "LTX-Video from a picture", "LTXImageToVideoPipeline", I2V, 32,
        stride=8, pictures=1,
    ),
    Family("kandinsky5", "Kandinsky 5", "Kandinsky5T2VPipeline", T2V, 16, stride=4),
    Family(
        "wan-vace", "Wan 2.1 VACE", "WanVACEPipeline", T2V, 16, stride=4,
        refused=("video", "mask", "reference_images"),
    ),
    Family("cogvideox", "CogVideoX", "CogVideoXPipeline", T2V, 16, stride=4),
    Family("mochi", "Mochi 1", "MochiPipeline", T2V, 16, stride=6),
)  # fmt: skip

FAMILIES: Final[Mapping[str, Family]] = {family.id: family for family in _ALL}


def target(family: Family) -> str:
    """Where the function that writes the family's tiny checkpoint is."""
    module = "videos" if family.stride else "images"
    return f"sgld_diffusers.tiny.{module}:{family.id.replace('-', '_')}"


BLUEPRINTS: Final[Mapping[str, str]] = {family.id: target(family) for family in _ALL}
