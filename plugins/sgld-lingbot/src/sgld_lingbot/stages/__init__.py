"""Stages that only LingBot World needs."""
