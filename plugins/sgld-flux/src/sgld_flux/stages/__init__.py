"""Stages that only FLUX needs."""
