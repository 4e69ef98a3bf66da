"""What a checkpoint of a causal Wan model says about itself. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sgld.api.errors import ModelError
from sgld_wan.models.config import WanConfig

FIELD: Final = "transformer/config.json"
_NUMBERS: Final = {
    "num_frames_per_block": "chunk",
    "num_frame_per_block": "chunk",
    "local_attn_size": "window",
    "sink_size": "sink",
}
_NEUTRAL: Final = {"model_type": ("t2v", "ti2v"), "text_len": (512,)}
"""Keys of original configurations which only mean something at other values than these."""


class CausalConfig(NamedTuple):
    """A causal denoiser.

    Args:
        wan: sizes of the network.
        chunk: latent frames of a chunk; None: the file does not say.
        window: latent frames that attention sees, sink and chunk included; -1: all; None likewise.
        sink: first latent frames that stay in the window; None likewise.
        first_alone: whether the first latent frame is a chunk of its own.
    """

    wan: WanConfig
    chunk: int | None = None
    window: int | None = None
    sink: int | None = None
    first_alone: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CausalConfig:
        """Read a `transformer/config.json`: that of Wan, with or without the keys of causal models.

        Raises:
            ModelError: naming every key that is unknown, or has a value that cannot be.
        """
        rest = {
            key: value
            for key, value in values.items()
            if not (key in _NEUTRAL and value in _NEUTRAL[key])
        }
        wrong: list[str] = []
        found: dict[str, int] = {}
        for key, field in _NUMBERS.items():
            value = rest.pop(key, None)
            least = -1 if field == "window" else 0 if field == "sink" else 1
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                wrong.append(f"{key}={value!r}: must be a whole number of at least {least}")
            else:
                found[field] = value
        alone = rest.pop("independent_first_frame", False)
        if not isinstance(alone, bool):
            wrong.append(f"independent_first_frame={alone!r}: must be true or false")
        if found.get("window") == 0:
            found["window"] = -1
        if wrong:
            raise ModelError(
                f"{FIELD}: " + "; ".join(wrong) + ".",
                remedy="This checkpoint is not a causal Wan denoiser that sgld-wan can compute.",
            )
        return cls(WanConfig.from_json(rest), first_alone=alone, **found)
