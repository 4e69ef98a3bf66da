"""SANA's pipelines: loading, and the order of stages."""
