"""The instructions that SANA models were trained to find in front of a prompt.

They are data of the published pipelines (NVlabs/Sana `configs/sana_app_config`, and diffusers'
`complex_human_instruction`): another wording gives other pictures.
"""

from __future__ import annotations

from typing import Final

IMAGE: Final = "\n".join(
    (
        "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual "
        "descriptions suitable for image generation. Evaluate the level of detail in the user "
        "prompt:",
        "- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, "
        "textures, and spatial relationships to create vivid and concrete scenes.",
        "- If the prompt is already detailed, refine and enhance the existing details slightly "
        "without overcomplicating.",
        "Here are examples of how to transform or refine prompts:",
        "- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat curled up in a "
        "round shape, sleeping peacefully on a warm sunny windowsill, surrounded by pots of "
        "blooming red flowers.",
        "- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, "
        "featuring glowing street lamps, a diverse crowd of people in colorful clothing, and a "
        "double-decker bus passing by towering glass skyscrapers.",
        "Please generate only the enhanced description for the prompt below and avoid including "
        "any additional commentary or evaluations:",
        "User Prompt: ",
    )
)
"""For SANA and SANA-Sprint."""

VIDEO: Final = "\n".join(
    (
        "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual "
        "descriptions suitable for video generation. Evaluate the level of detail in the user "
        "prompt:",
        "- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, "
        "textures, motion, and temporal relationships to create vivid and dynamic scenes.",
        "- If the prompt is already detailed, refine and enhance the existing details slightly "
        "without overcomplicating.",
        "Here are examples of how to transform or refine prompts:",
        "- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat slowly settling "
        "into a curled position, peacefully falling asleep on a warm sunny windowsill, with "
        "gentle sunlight filtering through surrounding pots of blooming red flowers.",
        "- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, "
        "featuring glowing street lamps gradually lighting up, a diverse crowd of people in "
        "colorful clothing walking past, and a double-decker bus smoothly passing by towering "
        "glass skyscrapers.",
        "Please generate only the enhanced description for the prompt below and avoid including "
        "any additional commentary or evaluations:",
        "User Prompt: ",
    )
)
"""For SANA-Video."""
