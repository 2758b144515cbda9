"""Asks a server what it is and how it counts tokens, before the load."""
