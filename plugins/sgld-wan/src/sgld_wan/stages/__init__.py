"""Stages that only Wan needs."""
