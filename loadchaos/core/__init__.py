"""Shared types and the ledger, which every other package may import.

`model` has the types of a run, `ledger` reads and writes run folders, and `errors` has the exceptions that a user sees.
`redact` hides secrets, `units` parses values such as `30s`, `stats` and `latency` hold histograms.
Nothing here imports another package of loadchaos. To add a kind of ledger row, start in `ledger/rows.py`.
"""
