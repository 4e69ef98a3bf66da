"""Reference pictures: as tokens in the sequence, or as remembered keys and values."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.media.images import fit_image
from sgld_flux.models.config2 import Grids
from sgld_flux.params2 import reference_size

FIRST_TIME = 10
"""Reference k (from 0) stands at time 10 + 10·k; the generated picture at 0."""


def fitted(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The picture as the model is shown it: at most 1024² pixels, cut in the middle to the grid."""
    height, width = image.shape[:2]
    (shown_width, shown_height), (columns, rows) = reference_size(width, height)
    if (shown_width, shown_height) != (width, height):
        image = fit_image(image, shown_height, shown_width, "stretch")
    top, left = (shown_height - rows) // 2, (shown_width - columns) // 2
    return image[top : top + rows, left : left + columns]


class EncodeReferences(Stage):
    """Writes `references` [1, R, C], normalised latent tokens of all pictures, and their `grids`.

    Without pictures they are None and ().
    """

    id = "references"
    writes = ("references", "grids")
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.references, job.slots.grids = None, ()
        if not job.request.images:
            return
        latents = yield [self._call(job, image) for image in job.request.images]
        grids: Grids = tuple(
            (FIRST_TIME + FIRST_TIME * index, *latent.shape[2:])
            for index, latent in enumerate(latents)
        )
        tokens = [latent.flatten(2).transpose(1, 2) for latent in latents]
        job.slots.references, job.slots.grids = torch.cat(tokens, dim=1), grids

    def _call(self, job: Job, image: npt.NDArray[np.uint8]) -> Call:
        # A copy, since a caller's own array may be read-only, which torch warns of.
        shown = np.array(fitted(image), order="C")
        pixels = torch.from_numpy(shown).float().div(255).mul(2).sub(1)
        digest = hashlib.blake2b(shown.data, digest_size=16).hexdigest()
        return Call(
            "vae",
            {"picture": pixels[None].permute(0, 3, 1, 2).to(job.device)},
            method="encode",
            batch_key="reference",
            # The outputs of one request share their references.
            memo=("reference", shown.shape, digest),
        )


class RememberReferences(Stage):
    """Writes `memory` [1, blocks, 2, R, H, D], keys and values of the references, or None.

    It belongs to the job and goes with it; the tokens themselves are not needed any more.
    """

    id = "remember"
    reads = ("references", "grids")
    writes = ("memory",)
    uses = ("transformer",)

    def run(self, job: Job) -> StageRun:
        slots = job.slots
        slots.memory = None
        if slots.references is None:
            return
        memory = yield Call(
            "transformer",
            {
                "references": slots.references.to(job.parts["compute_dtype"]),
                "grids": slots.grids,
            },
            method="remember",
            batch_key="flux2-references",
            tokens=slots.references.shape[1],
        )
        # A row of a shared forward would keep its companions' memory alive.
        alone = memory.untyped_storage().nbytes() == memory.nbytes
        slots.memory = memory if alone else memory.clone()
        slots.references, slots.grids = None, ()
