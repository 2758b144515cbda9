"""Discover a server's kind, limits and token counts before the load. `calibrate.py` is the entry; the result is
`core.model.Facts`. To read one more fact, add a field to `Facts` and a function of the dialect that knows it.
"""
