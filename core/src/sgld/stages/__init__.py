"""Stages that families share; a family's own stages live in its plugin."""
