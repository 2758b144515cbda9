"""SHELF: how a client behaves. `plain` is the one to copy."""
