"""Where components live between calls: on the device, on the host, or layer by layer."""
