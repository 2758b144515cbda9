"""Replay recorded requests until a failure comes again, and minimise them. `sources` reads a run, an incident or a file
into a trace (profile/request_trace.py). `bodies` stores the bodies of its requests. `expected` is the failure that has
to come again. A try (`one_try`) is a run of its own on a fresh server or a held one (`servers`); `session` runs tries
until enough is known.
"""
