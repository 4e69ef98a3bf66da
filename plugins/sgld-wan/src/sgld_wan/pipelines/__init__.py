"""Wan's pipelines, each a short list of stages."""
