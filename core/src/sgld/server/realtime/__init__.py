"""Realtime sessions over a WebSocket; docs/realtime.md describes the protocol."""
