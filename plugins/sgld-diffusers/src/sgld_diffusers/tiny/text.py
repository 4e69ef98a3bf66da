"""Small random text encoders of the kinds that diffusers' pipelines use, all in float32."""

from __future__ import annotations

from typing import Any, Final

from sgld.testing.randomness import reinitialise

WIDTH: Final = 32
"""Width of every language model here."""
VOCABULARY: Final = 640
"""Room for each tokenizer of `sgld_diffusers.tiny.tokenizers`."""

_LAYERS: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "max_position_embeddings": 4096,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
}


def clip(seed: int, *, projection: int = 0, width: int = WIDTH) -> Any:
    """CLIP's text tower; with `projection` the kind that has a projected pooled output."""
    from transformers import (  # noqa: PLC0415
        CLIPTextConfig,
        CLIPTextModel,
        CLIPTextModelWithProjection,
    )

    config = CLIPTextConfig(
        bos_token_id=512,
        eos_token_id=513,
        pad_token_id=1,
        hidden_act="quick_gelu",
        hidden_size=width,
        intermediate_size=37,
        max_position_embeddings=77,
        num_attention_heads=4,
        num_hidden_layers=2,
        projection_dim=projection or width,
        vocab_size=514,
    )
    kind: Any = CLIPTextModelWithProjection if projection else CLIPTextModel
    return reinitialise(kind(config), seed)


def t5(seed: int, *, width: int = WIDTH) -> Any:
    """T5 v1.1's encoder."""
    from transformers import T5Config, T5EncoderModel  # noqa: PLC0415

    config = T5Config(
        d_ff=37,
        d_kv=8,
        d_model=width,
        feed_forward_proj="gated-gelu",
        num_heads=4,
        num_layers=2,
        vocab_size=128,
    )
    return reinitialise(T5EncoderModel(config), seed)


def gemma2(seed: int) -> Any:
    """Gemma 2 without its language head."""
    from transformers import Gemma2Config, Gemma2Model  # noqa: PLC0415

    # Gemma-2 caps attention scores at 50; random ones are small and would never feel that.
    config = Gemma2Config(
        **_LAYERS, attn_logit_softcapping=2.0, head_dim=8, query_pre_attn_scalar=8
    )
    return reinitialise(Gemma2Model(config), seed)


def glm(seed: int) -> Any:
    """GLM-4 without its language head."""
    from transformers import GlmConfig, GlmModel  # noqa: PLC0415

    return reinitialise(GlmModel(GlmConfig(**_LAYERS, head_dim=16, pad_token_id=0)), seed)


def llama(seed: int) -> Any:
    """Llama without its language head; one layer more, since the pipelines leave the last two."""
    from transformers import LlamaConfig, LlamaModel  # noqa: PLC0415

    settings: dict[str, Any] = {**_LAYERS, "num_hidden_layers": 3}
    return reinitialise(LlamaModel(LlamaConfig(**settings)), seed)


def qwen3(seed: int) -> Any:
    """Qwen 3 with its language head."""
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    config = Qwen3Config(**_LAYERS, head_dim=16, tie_word_embeddings=True)
    return reinitialise(Qwen3ForCausalLM(config), seed)


def qwen_vl(seed: int) -> Any:
    """Qwen 2.5 VL: the language model and the eyes, patches of 14 pixels joined two by two."""
    from transformers import (  # noqa: PLC0415
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
    )

    from sgld_diffusers.tiny.tokenizers import QWEN_SPECIAL  # noqa: PLC0415

    ids = {name: QWEN_SPECIAL.index(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    config = Qwen2_5_VLConfig(
        text_config={
            **_LAYERS,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        },
        vision_config={
            "depth": 2,
            "fullatt_block_indexes": [1],
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=QWEN_SPECIAL.index("<|vision_start|>"),
        vision_end_token_id=QWEN_SPECIAL.index("<|vision_end|>"),
    )
    return reinitialise(Qwen2_5_VLForConditionalGeneration(config), seed)


def qwen_vl_processor(tokenizer: Any) -> Any:
    """The processor that puts pictures into a prompt for `qwen_vl`."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor  # noqa: PLC0415
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import (  # noqa: PLC0415
        Qwen2VLVideoProcessor,
    )

    # The real limit is 1280 joined patches; a tenth keeps a tiny model quick.
    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": 128 * 28 * 28}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    )


def umt5(seed: int) -> Any:
    """UMT5's encoder."""
    from sgld.testing.encoders import tiny_text_encoder  # noqa: PLC0415

    return tiny_text_encoder(seed, d_model=WIDTH)
