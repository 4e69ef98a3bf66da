"""What a pipeline class says of itself, read from its source without running it."""
