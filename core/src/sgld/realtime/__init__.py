"""Realtime sessions as plain data: what is asked of an engine and what it answers, what a family's
adapter understands, and the control signals that several families share. Never imports torch."""
