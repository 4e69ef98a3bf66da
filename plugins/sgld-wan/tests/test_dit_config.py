"""`transformer/config.json`: what is read, what is refused and how it says so."""

from __future__ import annotations

from typing import Any

import pytest

from sgld.api.errors import ModelError
from sgld_wan.models.config import WanConfig, token_grid, tokens

BASE: dict[str, Any] = {"num_attention_heads": 3, "attention_head_dim": 20, "num_layers": 3}


def test_tokens_of_the_released_sizes() -> None:
    config = WanConfig()
    assert token_grid(config, 21, 60, 104) == (21, 30, 52)
    assert tokens(config, 21, 60, 104) == 32760
    assert tokens(config, 21, 90, 160) == 75600
    assert tokens(config, 1, 2, 2) == 1


def test_config_takes_released_files() -> None:
    notes = {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0"}
    config = WanConfig.from_json({**BASE, **notes, "out_channels": None, "window_size": [-1, -1]})
    assert config.width == 60
    assert config.out_channels == 16
    assert config.patch_size == (1, 2, 2)
    assert WanConfig.from_json({}) == WanConfig()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_norm": "rms_norm"}, r"qk_norm='rms_norm': only 'rms_norm_across_heads'"),
        ({"qk_norm": None}, "qk_norm=None: must be given"),
        ({"num_frames_per_block": 3}, "num_frames_per_block=3: unknown key"),
        ({"window_size": [4, 4]}, r"window_size=\[4, 4\]: unknown key"),
        ({"num_layers": 0}, "num_layers=0: must be a positive whole number"),
        ({"num_layers": True}, "num_layers=True: must be a positive whole number"),
        ({"num_layers": "30"}, "num_layers='30': must be a positive whole number"),
        ({"patch_size": [2, 2]}, r"patch_size=\(2, 2\): must be three positive whole numbers"),
        ({"patch_size": 2}, "patch_size=2: must be three"),
        ({"eps": 0}, "eps=0: must be a positive number"),
        ({"cross_attn_norm": 1}, "cross_attn_norm=1: must be true or false"),
        ({"attention_head_dim": 21}, "attention_head_dim=21: must be even"),
        ({"freq_dim": 33}, "freq_dim=33: must be even"),
        ({"image_dim": 28}, "image_dim=28, added_kv_proj_dim=None: both or neither"),
        ({"image_dim": 28, "added_kv_proj_dim": 61}, "added_kv_proj_dim=61: must be 60"),
        ({"pos_embed_seq_len": 514}, "pos_embed_seq_len=514: needs image_dim"),
        ({"eps": "small", "text_dim": -1}, "eps='small': .*; text_dim=-1: "),
    ],
)
def test_config_refuses_what_it_cannot_compute(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"transformer/config.json: .*{message}"):
        WanConfig.from_json({**BASE, **changes})
