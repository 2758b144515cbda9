"""Faults that no log line reports."""
