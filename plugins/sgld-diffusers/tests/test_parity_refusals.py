"""Families that cannot be served are refused by name and reason, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sgld.api.errors import ModelError
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan

REFUSED = {
    "LTX2Pipeline": "sound beside its frames",
    "LTX2ImageToVideoPipeline": "sound beside its frames",
    "StableAudioPipeline": "makes audios",
    "AudioLDM2Pipeline": "makes audios",
    "ShapEPipeline": "three-dimensional",
    "ShapEImg2ImgPipeline": "three-dimensional",
    "MarigoldDepthPipeline": "makes latent, prediction, uncertainty",
    "KandinskyPriorPipeline": "makes image_embeds",
    "LLaDA2Pipeline": "makes sequences, texts",
    "WanAnimatePipeline": "needs pose_video (list[PIL.Image.Image]), face_video",
    "StableCascadeDecoderPipeline": "needs image_embeddings",
    "CogVideoXVideoToVideoPipeline": "starts from a clip",
    "WanVideoToVideoPipeline": "starts from a clip",
    "AnimateDiffVideoToVideoPipeline": "starts from a clip",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_delivered_is_refused(name: str, tmp_path: Path) -> None:
    index = {"_class_name": name, "_diffusers_version": "0.42.1"}
    (tmp_path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelError) as refusal:
        make_plan(ServingOptions(model_path=str(tmp_path), backend="diffusers"))
    assert refusal.value.code == "model_not_recognised"
    assert name in str(refusal.value)
    assert REFUSED[name] in str(refusal.value)
