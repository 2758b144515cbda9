"""Start, supervise and stop a server: `launcher.py` runs in our process, `supervisor.py` between us and the server."""
