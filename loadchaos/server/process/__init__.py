"""Start, supervise and stop a server on this machine.

Main type: `LaunchedServer`.

`launcher.py` runs in our process. `supervisor.py` is a process between us and the server: it records the server's output
and stops the server when we are gone.
"""
