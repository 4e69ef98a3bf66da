"""A small world that is drawn by rays, and the training of a video model that makes it up."""
