"""A small trained world, as a checkpoint in the package: `demo:world`."""
