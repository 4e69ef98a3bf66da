"""Tiny random checkpoints of model families that diffusers serves; nothing here imports torch."""

from __future__ import annotations

from sgld_diffusers.tiny.families import BLUEPRINTS, FAMILIES, Family

__all__ = ["BLUEPRINTS", "FAMILIES", "Family"]
