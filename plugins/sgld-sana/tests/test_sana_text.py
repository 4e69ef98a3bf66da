"""Prompts to states: prefix, length, mask and token selection, against diffusers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sana_oracle
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgld.testing.parity import ParityTable, relative_l2
from sgld_sana import instructions, testing
from sgld_sana.models.text import TextEncoder, first_and_last
from sgld_sana.stages.text import clean, full_prompt, tokenize
from sgld_sana.tokenizer import vocabulary

TABLE = ParityTable("sana text")
Tiny = Callable[[str], Path]


class Asked:
    """Parameters, as far as the text needs them."""

    prompt = "A Cat."


def encoder(folder: Path) -> TextEncoder:
    model = TextEncoder(testing._text())
    theirs = sana_oracle.components(folder)["text_encoder"]
    model.model.load_state_dict(theirs.state_dict())
    return model.eval()


def ours(folder: Path, prompt: str, instruction: str, length: int) -> tuple[Any, Any]:
    tokenizer = sana_oracle.components(folder)["tokenizer"]
    tokens = tokenize(tokenizer, clean(prompt), instruction, length)
    with torch.no_grad():
        states = encoder(folder)(**tokens, length=length)
    return states, first_and_last(tokens["attention_mask"], length)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "prompt", "length"),
    [
        ("short", "A Red Kite", 300),
        ("long", "a bird and a wave, " * 40, 300),
        ("empty", "", 300),
        ("blank and accents", "  É½ \n 海 ", 300),
        ("17 tokens", "a bird and a wave", 17),
        ("one token", "a bird", 1),
    ],
)
@pytest.mark.parametrize(("variant", "instruction"), [
    ("sana", instructions.IMAGE), ("video", instructions.VIDEO), ("sana", ""), ("sana", "Draw:\n"),
])  # fmt: skip
def test_states_and_mask_equal_diffusers(
    variant: str, instruction: str, name: str, prompt: str, length: int, tiny: Tiny
) -> None:
    pipe = sana_oracle.pipeline(tiny(variant))
    lines = instruction.split("\n") if instruction else None
    wanted, mask, *_ = pipe.encode_prompt(
        prompt,
        do_classifier_free_guidance=False,
        device=torch.device("cpu"),
        max_sequence_length=length,
        complex_human_instruction=lines,
    )
    states, kept = ours(tiny(variant), prompt, instruction, length)
    assert torch.equal(kept, mask)
    assert states.shape == (1, length, testing.TEXT_WIDTH)
    TABLE.check(f"{variant} {name}, prefix {len(instruction)}", states, wanted, 1e-6)


def test_the_instructions_are_the_published_ones(tiny: Tiny) -> None:
    import inspect

    for variant, text in (("sana", instructions.IMAGE), ("sprint", instructions.IMAGE),
                          ("video", instructions.VIDEO)):  # fmt: skip
        call = inspect.signature(sana_oracle.pipeline(tiny(variant)).__call__)
        assert "\n".join(call.parameters["complex_human_instruction"].default) == text


def test_capped_scores_matter(tiny: Tiny) -> None:
    """A text encoder whose attention does not cap its scores would not pass here."""
    model = encoder(tiny("sana"))
    assert model.model.config._attn_implementation == "eager"
    tokens = tokenize(sana_oracle.components(tiny("sana"))["tokenizer"], "a red kite", "", 20)
    with torch.no_grad():
        capped = model(**tokens, length=20)
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = None
        free = model(**tokens, length=20)
    assert relative_l2(capped[:, :10], free[:, :10]) > 1e-3


def test_the_instruction_is_read_and_mostly_not_seen(tiny: Tiny) -> None:
    with_it, _ = ours(tiny("sana"), "a red kite", instructions.IMAGE, 300)
    without, _ = ours(tiny("sana"), "a red kite", "", 300)
    assert with_it.shape == without.shape
    assert relative_l2(with_it, without) > 0.1


def test_motion_score_is_put_behind_the_prompt() -> None:
    asked: Any = Asked()
    assert full_prompt(asked) == "A Cat."
    asked.motion_score = 5
    assert full_prompt(asked) == "A Cat. motion score: 5."
    asked.motion_score = 0
    assert full_prompt(asked) == "A Cat."


@given(st.text(max_size=200))
def test_cleaning_is_lower_case_without_ends(prompt: str) -> None:
    cleaned = clean(prompt)
    assert cleaned == cleaned.strip()
    assert cleaned == prompt.lower().strip()


@given(length=st.integers(1, 12), extra=st.integers(0, 9))
def test_first_and_last_keeps_the_begin_token(length: int, extra: int) -> None:
    rows = torch.arange(length + extra)[None]
    found = first_and_last(rows, length)[0].tolist()
    assert found == [0, *range(1 + extra, length + extra)]


def test_tokenizer_knows_every_character(tiny: Tiny) -> None:
    folder = tiny("sana") / "tokenizer"
    tokenizer = sana_oracle.transformers.AutoTokenizer.from_pretrained(folder)
    assert len(vocabulary()) == 356
    assert tokenizer.encode("a b") == [2, vocabulary()["a"], vocabulary()["▁"], vocabulary()["b"]]
    assert tokenizer.encode("é") == [2, vocabulary()["<0xC3>"], vocabulary()["<0xA9>"]]
    assert tokenizer.padding_side == "left"  # ours must ask for the right, as the real one does
