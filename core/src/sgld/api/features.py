"""Names of optional abilities that a pipeline must list before the engine will use them.

The strings are open: a plugin may invent its own. These constants only prevent typing errors.
What a pipeline did not list is refused before any weight is read.
"""

from __future__ import annotations

from typing import Final

STEP_BATCHING: Final = "step-batching"
COMPONENT_OFFLOAD: Final = "component-offload"
LAYERWISE_OFFLOAD: Final = "layerwise-offload"
CFG: Final = "cfg"
DUMMY_WEIGHTS: Final = "dummy-weights"
ORIGINAL_LAYOUT: Final = "original-layout"
VAE_TILING: Final = "vae-tiling"
REMOTE_CODE: Final = "remote-code"
"""Code that a checkpoint brings may be run, when the user says so."""
