"""LingBot's pipeline and how its parts are loaded."""
