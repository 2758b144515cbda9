"""The run folder: append, read back, follow, pack."""
