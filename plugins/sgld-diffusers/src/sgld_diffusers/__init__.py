"""Any diffusers pipeline for sgld: the fallback for models that no other plugin claims."""
