"""What a request for a clip that is made chunk by chunk may ask for. Torch-free.

`ChunkedParams` has the size of a chunk, how much history it sees, prompts that take over on the
way (`Shot`), and pictures that the clip begins with. The families are in `causal_params`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from pydantic import BeforeValidator

from sgld.params.options import Finding, Settled, Text, option
from sgld.params.sampling import TakesImage, VideoParams
from sgld_wan.params import WanTextLength, steps_text

PROMPTS_RULE: Final = 'a list of 1 to 64 texts that are not empty, such as ["a cat", "a dog"]'
COUNTS_RULE: Final = (
    "whole numbers of at least 1, one for each of shot_prompts, such as 3,2,2 or [3, 2, 2]"
)
MOST_PROMPTS: Final = 64
LONGEST_PROMPT: Final = 32_000
"""Characters of each of `shot_prompts`, as many as a server takes of `prompt`."""
LONGEST_WINDOW: Final = 1024
MOST_GIVEN: Final = 321
"""Pictures that a clip may begin with."""


def read_prompts(value: Any) -> Any:
    """A tuple of texts, or None; raises `ValueError` with the rule otherwise."""
    if value is None:
        return None
    texts = tuple(value) if isinstance(value, list | tuple) else ()
    good = all(isinstance(text, str) and text.strip() for text in texts)
    if not good or not 1 <= len(texts) <= MOST_PROMPTS:
        raise ValueError(f"must be {PROMPTS_RULE}")
    for index, text in enumerate(texts):
        if len(text) > LONGEST_PROMPT:
            entry = f"[{index}] has {len(text)} characters; the limit is {LONGEST_PROMPT}"
            raise ValueError(f"shot_prompts{entry}")
    return texts


def read_counts(value: Any) -> Any:
    """A tuple of whole numbers, or None; raises `ValueError` with the rule otherwise."""
    if value is None:
        return None
    value = steps_text(value)
    counts = tuple(value) if isinstance(value, list | tuple) else (value,)
    whole = all(isinstance(count, int) and not isinstance(count, bool) for count in counts)
    if not counts or not whole or min(counts) < 1:
        raise ValueError(f"must be {COUNTS_RULE}")
    return counts


def prompts_text(text: Any) -> Any:
    """The list that a flag holds as JSON; anything else stays as it is and is refused later."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


class Shot(NamedTuple):
    """What a chunk is to show.

    Args:
        prompt: of its shot.
        number: of its shot, from 0.
        opens: whether it is the first chunk of the shot.
    """

    prompt: str
    number: int
    opens: bool


class ChunkedParams(TakesImage, WanTextLength, VideoParams):
    """A clip that is made chunk by chunk, each seeing a window of what came before."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video", "image-to-video")
    prompt_optional: ClassVar[bool] = False
    size_from_image: ClassVar[bool] = True
    max_images: ClassVar[int] = MOST_GIVEN
    image_count_field: ClassVar[str] = "given_pictures"
    shows_previews: ClassVar[bool] = False
    usual_chunk: ClassVar[int] = 3
    """Latent frames of a chunk where neither the request nor the checkpoint says."""
    usual_window: ClassVar[int] = -1
    usual_sink: ClassVar[int] = 0
    holds_picture: ClassVar[bool] = False
    """A single given picture is the first frame of chunk 0, instead of standing before it."""

    prompt: str = option(
        "",
        "What to show. With shot_prompts it may be left out.",
        rule="text that is not empty",
    )
    given_pictures: int = option(
        0,
        "Input pictures, which the clip begins with: one, or 4k+1 in order. Counted by itself; it "
        "can be left out.",
        unit="pictures",
        ge=0,
        le=MOST_GIVEN,
    )
    shot_prompts: Annotated[
        tuple[str, ...] | None, BeforeValidator(read_prompts), Text(prompts_text)
    ] = option(
        None,
        "Prompts that take over one after the other, always with a new chunk; as a flag a JSON "
        "list. The first is prompt itself.",
        rule=PROMPTS_RULE,
    )
    shot_durations: Annotated[
        tuple[int, ...] | None, BeforeValidator(read_counts), Text(steps_text)
    ] = option(
        None,
        "Chunks of each shot. Leaving it out shares them out evenly; the last shot also gets what "
        "is left over.",
        rule=COUNTS_RULE,
    )
    chunks_per_shot: int = option(
        0,
        "Chunks of every shot but the last, which gets the rest; 0 shares them out evenly.",
        unit="chunks",
        ge=0,
        le=10_000,
    )
    chunk_latents: int | None = option(
        None,
        "Latent frames of a chunk; one is four frames, the very first is one. Leaving it out takes "
        "the checkpoint's own.",
        unit="latent frames",
        ge=1,
        le=64,
    )
    window_latents: int | None = option(
        None,
        "Latent frames that a chunk sees, the sink and itself included; -1 is all. Leaving it out "
        "takes the checkpoint's own.",
        unit="latent frames",
        ge=-1,
        le=LONGEST_WINDOW,
    )
    sink_latents: int | None = option(
        None,
        "First latent frames that stay in the window for ever. Leaving it out takes the "
        "checkpoint's own.",
        unit="latent frames",
        ge=0,
        le=LONGEST_WINDOW - 1,
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also keep prompt and shots together, and window, sink and chunk."""
        values = dict(values)
        # Beside a field that is wrong, those that are right come as they were written.
        for name, read in (("shot_prompts", read_prompts), ("shot_durations", read_counts)):
            if name in values:
                values[name] = read(values[name])
        shots, prompt = values.get("shot_prompts"), values.get("prompt")
        findings: list[Finding] = []
        if isinstance(shots, tuple):
            if not prompt:
                values["prompt"] = shots[0]
            elif prompt != shots[0]:
                message = "is not the first of shot_prompts, which would take its place."
                findings.append(Finding("prompt", message, "Leave it out, or put it first there."))
        settled = super().settle(values, given)
        others = list(settled.findings)
        if "shot_prompts" not in values and not prompt:
            # The shots are wrong, which has been said; they would have brought the prompt.
            others = [finding for finding in others if finding.name != "prompt"]
        findings += [*others, *cls._shot_findings(settled.values)]
        findings += cls._window_findings(settled.values)
        findings += cls._picture_findings(settled.values)
        return settled._replace(findings=tuple(findings))

    @classmethod
    def _picture_findings(cls, values: Mapping[str, Any]) -> list[Finding]:
        count, stride = values.get("given_pictures"), cls.temporal_stride
        if isinstance(count, int) and count and count % stride != 1:
            message = f"{count} pictures are no beginning of a clip."
            return [Finding("image_path", message, f"Give one, or {stride}k+1 in order.")]
        return []

    @classmethod
    def round_length(cls, frames: int, values: Mapping[str, Any]) -> tuple[int, str]:
        """Whole chunks behind what is given or stands alone."""
        chunk, lead = cls._chunk(values), cls._lead(values)
        stride = cls.temporal_stride
        wanted = (frames - 1) // stride + 1
        latents = lead + max(1, (wanted - lead) // chunk) * chunk
        step, least = stride * chunk, stride * (lead + chunk - 1) + 1
        return stride * (latents - 1) + 1, f"{step}k+{least % step or step}"

    @classmethod
    def _chunk(cls, values: Mapping[str, Any]) -> int:
        chunk = values.get("chunk_latents")
        return chunk if isinstance(chunk, int) else cls.usual_chunk

    @classmethod
    def _lead(cls, values: Mapping[str, Any]) -> int:
        """Latent frames before the first whole chunk."""
        count = values.get("given_pictures")
        latents = (count - 1) // cls.temporal_stride + 1 if isinstance(count, int) and count else 0
        return 0 if latents == 1 and cls.holds_picture else latents

    @classmethod
    def _shot_findings(cls, values: Mapping[str, Any]) -> list[Finding]:
        """What is wrong between the fields of shots. One that is wrong on its own is missing here;
        then nothing is said about what depends on it."""
        if not {"shot_prompts", "shot_durations"} <= values.keys():
            return []
        shots, counts = values.get("shot_prompts"), values.get("shot_durations")
        each, frames = values.get("chunks_per_shot"), values.get("num_frames")
        if not isinstance(shots, tuple):
            named = [n for n in ("shot_durations", "chunks_per_shot") if values.get(n)]
            return [Finding(name, "is for shot_prompts, which is not given.") for name in named]
        if counts and each:
            return [Finding("chunks_per_shot", "says the same as shot_durations.", "Give one.")]
        if isinstance(counts, tuple) and len(counts) != len(shots):
            numbers = "1 number" if len(counts) == 1 else f"{len(counts)} numbers"
            message = f"has {numbers} for {len(shots)} shots."
            return [Finding("shot_durations", message, f"It must be {COUNTS_RULE}.")]
        if not isinstance(frames, int) or not isinstance(each, int):
            return []
        chunks = cls.chunks(values)
        if isinstance(counts, tuple):
            needed, name = sum(counts), "shot_durations"
        else:
            needed, name = max(each, 1) * (len(shots) - 1) + 1, "shot_prompts"
        if needed <= chunks:
            return []
        message = f"needs {needed} chunks, and a clip of {frames} frames has {chunks}."
        return [Finding(name, message, "Make the clip longer, or the shots fewer or shorter.")]

    @classmethod
    def chunks(cls, values: Mapping[str, Any]) -> int:
        """Chunks that are generated, as far as the parameters alone tell: a checkpoint may have
        chunks of another size."""
        latents = (values["num_frames"] - 1) // cls.temporal_stride + 1
        return max(1, -(-(latents - cls._lead(values)) // cls._chunk(values)))

    @classmethod
    def _window_findings(cls, values: Mapping[str, Any]) -> list[Finding]:
        window, sink = values.get("window_latents"), values.get("sink_latents")
        if window == 0:
            return [Finding("window_latents", "a chunk sees at least itself.", "-1 is all.")]
        if not isinstance(window, int) or window < 0:
            return []
        least = cls.least_window(cls._chunk(values), sink if isinstance(sink, int) else 0, values)
        if window >= least:
            return []
        message = f"is too small for the sink and a chunk of {cls._chunk(values)} latent frames."
        return [Finding("window_latents", message, f"Give at least {least}, or a smaller sink.")]

    @classmethod
    def least_window(cls, chunk: int, sink: int, values: Mapping[str, Any]) -> int:
        """The smallest window for a chunk and a sink."""
        return chunk + sink

    def shot(self, index: int) -> Shot:
        """What chunk `index` is to show."""
        prompts = self.shot_prompts or (self.prompt,)
        total, count = self.chunks(dict(self)), len(prompts)
        each = self.chunks_per_shot or max(1, total // count)
        lengths = self.shot_durations or (each,) * count
        ends = list(accumulate(lengths[:-1]))
        number = bisect_right(ends, index)
        return Shot(prompts[number], number, index == 0 or index in ends)
