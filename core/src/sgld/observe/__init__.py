"""Logs, and later events and metrics."""
