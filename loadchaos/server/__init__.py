"""Discover, start and monitor the server under test."""
