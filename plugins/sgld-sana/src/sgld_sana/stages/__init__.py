"""Stages that only SANA needs."""
