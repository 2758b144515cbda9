"""The server under test: what kind it is, how to start it, how to watch it."""
