"""What a request to LingBot World may ask for; a session takes the same, chunk after chunk.

Defaults of the known checkpoints are in `presets.py`. What is left out here and in the checkpoint's
own files is `schedules.FALLBACK`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator

from sgld.params.options import Finding, Settled, Text, option
from sgld.params.sampling import TakesImage, VideoParams
from sgld_lingbot.actions import RULE as ACTIONS_RULE
from sgld_lingbot.actions import Script, read_script, script_text
from sgld_lingbot.schedules import RECIPES, V2_STEPS, Table
from sgld_wan.params import DMD_RULE, FixedSteps, read_steps, steps_text

LONGEST_WINDOW: Final = 240
"""Latent frames: a minute at 16 frames per second."""

RecipeName = Literal["v1", "v1-long", "v1-script", "v2", "v2-long", "v2-script"]


class LingBotParams(TakesImage, FixedSteps, VideoParams):
    """LingBot World v1 and v2, causal: a picture that the world begins with, and a camera."""

    tasks: ClassVar[tuple[str, ...]] = ("image-to-video",)
    needs_image: ClassVar[bool] = True
    shows_previews: ClassVar[bool] = False
    max_pixels: ClassVar[int] = 1280 * 720
    refused: ClassVar[Mapping[str, str]] = {
        **FixedSteps.refused,
        "true_cfg_scale": FixedSteps.refused["guidance_scale"],
    }

    num_frames: int = option(
        81,
        "Frames of the clip, rounded down to whole chunks; the first frame counts alone, then four "
        "by four. 1 is a single picture, the last frame of the first chunk. A session is endless; "
        "there it is how much of the still picture is encoded ahead of the first chunk.",
        unit="frames",
        ge=1,
        le=100_000,
    )
    num_inference_steps: int = option(
        4,
        "Always the number of dmd_denoising_steps; another number is refused.",
        unit="steps",
        ge=1,
        le=1000,
    )
    camera_actions: Annotated[Script | None, BeforeValidator(read_script), Text(script_text)] = (
        option(
            None,
            "Keys held at each latent frame: w a s d walk, i j k l look. None is held afterwards. "
            "Leaving it out leaves the camera to the model.",
            rule=ACTIONS_RULE,
        )
    )
    recipe: RecipeName | None = option(
        None,
        "Sets steps, shift, table, chunk, window and sink as one of the public ways to run these "
        "models, wherever they are not given one by one. Leaving it out takes the checkpoint's.",
    )
    dmd_denoising_steps: Annotated[
        tuple[int, ...], BeforeValidator(read_steps), Text(steps_text)
    ] = option(V2_STEPS, "Training steps that the model was distilled for.", rule=DMD_RULE)
    flow_shift: float | None = option(
        None,
        "Shift of the table of noise levels. Leaving it out takes the checkpoint's own.",
        ge=0.1,
        le=100.0,
    )
    timestep_table: Table = option(
        "self-forcing", "Table of noise levels; unipc is that of the published script."
    )
    chunk_latents: int | None = option(
        None,
        "Latent frames of a chunk. Leaving it out takes the checkpoint's own.",
        unit="latent frames",
        ge=1,
        le=16,
    )
    realtime_causal_sink_size: int | None = option(
        None,
        "First latent frames that are never forgotten. Leaving it out takes the checkpoint's own.",
        unit="latent frames",
        ge=0,
        le=LONGEST_WINDOW - 1,
    )
    realtime_causal_kv_cache_num_frames: int | None = option(
        None,
        "Latent frames that are remembered at most, the first ones and the present chunk included. "
        "Leaving it out takes the checkpoint's own.",
        unit="latent frames",
        ge=1,
        le=LONGEST_WINDOW,
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also fill in a recipe, and keep steps, window, sink and chunk together."""
        settled = super().settle({**values, **_from_recipe(values, given)}, given)
        values = settled.values
        findings = window_findings(
            values.get("chunk_latents"),
            values.get("realtime_causal_kv_cache_num_frames"),
            values.get("realtime_causal_sink_size"),
        )
        return settled._replace(findings=(*settled.findings, *findings))

    @classmethod
    def round_length(cls, frames: int, values: Mapping[str, Any]) -> tuple[int, str]:
        """One frame, or whole chunks where their size is known by now."""
        chunk = values.get("chunk_latents")
        if frames == 1 or not isinstance(chunk, int):
            return super().round_length(frames, values)
        stride = cls.temporal_stride * chunk
        head = stride - cls.temporal_stride + 1
        return max(head, frames - (frames - head) % stride), f"{stride}k+{head}"


def window_findings(chunk: Any, window: Any, sink: Any) -> list[Finding]:
    """What is wrong with chunk, window and sink together; those that are not known are None."""
    if not isinstance(window, int):
        return []
    known = [value for value in (chunk, sink) if isinstance(value, int)]
    if sum(known) <= window and (isinstance(chunk, int) or sum(known) < window):
        return []
    named = [
        f"{name} of {value}"
        for name, value in (("the chunk", chunk), ("the sink", sink))
        if isinstance(value, int)
    ]
    least = sum(known) + (not isinstance(chunk, int))
    message = f"{window} frames have no room for {' and '.join(named)} latent frames."
    remedy = f"Give at least {least}, or a smaller realtime_causal_sink_size or chunk_latents."
    return [Finding("realtime_causal_kv_cache_num_frames", message, remedy)]


def _from_recipe(values: Mapping[str, Any], given: frozenset[str]) -> dict[str, Any]:
    name = values.get("recipe")
    if name is None or name not in RECIPES:
        return {}
    recipe = RECIPES[name]
    filled = {
        "dmd_denoising_steps": recipe.steps,
        "flow_shift": recipe.shift,
        "timestep_table": recipe.table,
        "chunk_latents": recipe.chunk,
        "realtime_causal_kv_cache_num_frames": recipe.window,
        "realtime_causal_sink_size": recipe.sink,
    }
    return {key: value for key, value in filled.items() if key not in given}
