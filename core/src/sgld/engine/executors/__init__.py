"""Where an engine lives; every executor takes requests and gives events as plain data."""
