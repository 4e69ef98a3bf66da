"""The networks of the Wan families: the denoiser, its configuration and its parts."""
