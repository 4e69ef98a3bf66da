"""A path or hub id becomes files, and files become modules."""
