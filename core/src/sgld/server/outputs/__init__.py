"""Where finished videos and pictures are kept: a local folder or S3-compatible storage."""
