"""LingBot World for sgld: a world that is steered while it is generated."""
