"""The networks of FLUX.1 and FLUX.2."""
