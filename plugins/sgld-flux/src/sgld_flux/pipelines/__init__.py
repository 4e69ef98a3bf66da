"""The pipelines of FLUX.1 and FLUX.2, each a short list of stages."""
