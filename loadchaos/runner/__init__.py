"""One run, from its first row to its verdict."""
