"""Known bugs of servers as data: which versions have one, under which conditions, what happens, what avoids it.

A bug is one file, `<engine>/<id>.toml`, whose keys are the fields of `Advisory` (advisory.py). `<engine>.toml` holds the
options and releases of an engine. `loadchaos doctor` compares them with a server; known issues of signatures are these.
What its source leaves open is left out.
"""
