"""Bytes in, bytes out, and what is refused: pictures, videos, names, sidecars. Never torch."""
