"""Signatures of TinyServe's log lines."""
