"""Shared types and the ledger, which every other package may import. Nothing here imports another package of loadchaos."""
