"""Find out before the load what the server is, what its limits are and how it counts tokens.

`calibrate.py` is the entry: `identify_server` reads pages, `calibrate` measures. The result is `core.model.Facts`. To read
one more fact, add a field to `Facts` and a function of the dialect that knows it.
"""
