"""SHELF: what is sent. Each payload is one file with its options and how it adds to a request."""
