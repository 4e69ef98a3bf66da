"""Device families. `Platform` is what the engine asks; `CpuPlatform` and `CudaPlatform` answer."""
