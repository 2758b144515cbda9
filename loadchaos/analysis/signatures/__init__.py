"""Signatures of failures in logs: one TOML file per speaker. The format is in docs/signatures.md."""
