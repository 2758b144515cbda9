"""Signatures of failures in logs: data, one TOML file per speaker. Format: docs/signatures.md."""
