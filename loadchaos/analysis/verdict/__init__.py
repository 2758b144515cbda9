"""Expectations, checks and the verdict."""
