"""SANA for sgld; `sgld_sana.plugin` says what is here."""
