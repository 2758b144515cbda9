"""Starts, supervises and ends a server on this machine."""
