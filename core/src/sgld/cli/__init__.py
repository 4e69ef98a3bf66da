"""The bell: the command line. `main.py` holds the table; a module for each command."""
