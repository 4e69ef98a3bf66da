"""What a request to a causal Wan model may ask for. Torch-free.

WanCausalParams     causal Wan 2.1 (Self-Forcing): distilled steps, a window of history
LongLive2Params     LongLive 2.0: a multistep solver, shots, a pinned sink
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator

from sgld.params.options import Finding, Settled, Text, option
from sgld.params.sampling import Guided
from sgld_wan.chunk_params import ChunkedParams, Shot
from sgld_wan.params import (
    DMD_RULE,
    NEGATIVE,
    NEGATIVE_PROMPT,
    FixedSteps,
    read_steps,
    steps_text,
)

SELF_FORCING_STEPS: Final = (1000, 750, 500, 250)


class WanCausalParams(FixedSteps, ChunkedParams):
    """Causal Wan 2.1 (Self-Forcing): a few distilled steps for each chunk, no guidance."""

    num_inference_steps: int = option(
        len(SELF_FORCING_STEPS),
        "Always the number of dmd_denoising_steps; another number is refused.",
        unit="steps",
        ge=1,
        le=1000,
    )
    dmd_denoising_steps: Annotated[
        tuple[int, ...], BeforeValidator(read_steps), Text(steps_text)
    ] = option(SELF_FORCING_STEPS, "Steps that the model was distilled for.", rule=DMD_RULE)
    warp_denoising_step: bool = option(
        True,
        "Whether the steps count places in the shifted table, as Self-Forcing does, or name its "
        "times.",
    )
    flow_shift: float = option(
        5.0, "Shift of the table that turns steps into noise levels.", ge=0.1, le=100.0
    )
    independent_first_frame: bool | None = option(
        None,
        "Whether the first latent frame is a chunk of its own. Leaving it out takes the "
        "checkpoint's own.",
    )
    refill_history: bool = option(
        True,
        "When a prompt takes over, run the remembered frames through the network again under it. "
        "Off, they stay as the earlier prompt made them.",
    )

    @classmethod
    def _lead(cls, values: Mapping[str, Any]) -> int:
        alone = 1 if values.get("independent_first_frame") is True else 0
        return max(alone, super()._lead(values))

    @classmethod
    def chunks(cls, values: Mapping[str, Any]) -> int:
        """Also counts a first frame that is a chunk of its own."""
        alone = values.get("independent_first_frame") is True and not super()._lead(values)
        return super().chunks(values) + (1 if alone else 0)


class LongLive2Params(Guided, ChunkedParams):
    """LongLive 2.0: long clips of several shots, four solver steps for each chunk."""

    spatial_multiple: ClassVar[int] = 32
    min_size: ClassVar[int] = 32
    usual_chunk: ClassVar[int] = 8
    usual_window: ClassVar[int] = 32
    usual_sink: ClassVar[int] = 8
    holds_picture: ClassVar[bool] = True

    width: int = option(1280, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(704, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_frames: int = option(
        61, "Frames of the clip; rounded down to whole chunks.", unit="frames", ge=1, le=100_000
    )
    fps: int = option(24, "Frame rate of the file.", unit="frames/s", ge=1, le=240)
    num_inference_steps: int = option(4, "Solver steps of each chunk.", unit="steps", ge=1, le=1000)
    flow_shift: float = option(
        5.0, "Timestep shift; higher spends more steps on coarse structure.", ge=0.1, le=100.0
    )
    negative_prompt: str = option(NEGATIVE_PROMPT, NEGATIVE)
    guidance_scale: float = option(
        1.0,
        "Strength of guidance. The model is made for 1, one forward a step; above 1 it runs two, "
        "and remembers everything twice.",
        ge=0.0,
        le=100.0,
    )
    scene_cut_prefix: str = option(
        "The scene transitions. ",
        "What is put in front of the prompt in the first chunk of every shot but the first. Empty: "
        "prompts take over without a cut.",
        rule="text",
    )
    multi_shot_sink: bool = option(
        True,
        "Besides the first frames of the clip, keep the first ones of the newest shot; the window "
        "must hold both.",
    )
    multi_shot_rope_offset: float = option(
        8.0,
        "How much further in time every new shot stands, in latent frames.",
        unit="latent frames",
        ge=0.0,
        le=10_000.0,
    )
    shot_clean_recache: bool = option(
        False, "Forget everything but the first frames of the clip when a shot begins."
    )
    relative_rope: bool = option(
        False,
        "Count positions in time from the oldest frame that is kept, instead of from the beginning "
        "of the clip. Then shots have no offset.",
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also refuse an offset where there is none."""
        settled = super().settle(values, given)
        values = settled.values
        wrong: list[Finding] = []
        if values.get("relative_rope") is True:
            if "multi_shot_rope_offset" in given and values["multi_shot_rope_offset"]:
                wrong.append(Finding("multi_shot_rope_offset", "has no effect with relative_rope."))
            values["multi_shot_rope_offset"] = 0.0
        if values.get("shot_clean_recache") is True and values.get("multi_shot_sink") is False:
            message = "needs multi_shot_sink: it cuts back to the first frames of the clip."
            wrong.append(Finding("shot_clean_recache", message))
        return settled._replace(values=values, findings=(*settled.findings, *wrong))

    @classmethod
    def least_window(cls, chunk: int, sink: int, values: Mapping[str, Any]) -> int:
        """Two sinks where shots keep one of their own."""
        shots = values.get("shot_prompts") or ()
        cuts = len(shots) > 1 and values.get("scene_cut_prefix") != ""
        twice = cuts and values.get("multi_shot_sink") is not False
        return max(chunk + sink + min(sink, chunk), 2 * sink + 1) if twice else chunk + sink

    def shot(self, index: int) -> Shot:
        """Also put the prefix in front where a shot begins; without one there is a single shot."""
        shot = super().shot(index)
        if not self.scene_cut_prefix:
            return shot._replace(number=0, opens=index == 0)
        if shot.opens and index:
            return shot._replace(prompt=self.scene_cut_prefix + shot.prompt)
        return shot
