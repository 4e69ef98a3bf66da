"""Light things in a module that imports torch."""

import torch

from sgld.testing.toy_params import ToyImageParams
from sgld.testing.toy_world_params import ToyWorldAdapter

DEVICE = torch.device("cpu")


class Heavy(ToyWorldAdapter):
    """As the toy's."""


class HeavyParams(ToyImageParams):
    """As the toy's."""
