"""What users may ask for; one validation for every way in. Torch-free."""
