"""SANA's networks, and thin wrappers of the library modules that its stages call."""
