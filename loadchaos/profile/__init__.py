"""Profiles: read YAML, check it, and turn it into the steps of a run; no clock, no network. To add a key, add a field to its
model, a row to docs/profile.md, and run `make schemas`.
"""
