"""Replay recorded requests until a failure comes again."""
