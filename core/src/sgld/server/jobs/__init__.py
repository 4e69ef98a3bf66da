"""Durable jobs: what was asked for, how far it is and what came out, kept across restarts."""
