"""Wan for sgld; `sgld_wan.plugin` says what is here."""
