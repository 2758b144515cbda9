"""Workers on other machines: joining, rows, commands and clocks.

`Coordinator` (master.py) is the master's side, `WorkerLink` (worker_link.py) the worker's. `messages.py` lists what
they send each other inside Locust's messages; a new message is a constant there and a listener on each side.
"""
