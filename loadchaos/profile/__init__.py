"""Profiles: read YAML, check it, and turn it into the steps of a run.

This package uses no clock and no network. Main type: `Profile` in profile.py. Each part of a profile (target, traffic,
load, attack, monitor, cron) is a pydantic model in a file of its own. validate.py checks what involves several parts.
`steps.steps(profile, seed)` gives the same steps for the same profile and seed.

To add a key, add a field to its model, a row to docs/profile.md, and run `make schemas`.
"""
