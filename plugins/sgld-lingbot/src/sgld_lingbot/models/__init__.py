"""LingBot World's network and its camera."""
