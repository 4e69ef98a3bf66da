"""FLUX for sgld; `sgld_flux.plugin` says what is here."""
