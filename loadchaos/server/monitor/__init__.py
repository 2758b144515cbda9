"""Monitor a server: health, metrics, logs, processes, machines, canary. To add a part, start its coroutine in
`Monitor._start_replica`; to add a place where a log can be, see `logs.SOURCES`.
"""
