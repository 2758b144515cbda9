"""Runs on a schedule (`loadchaos soak`). Each run is a process of its own; old ones are deleted. `daemon.Soak` is the
loop, `due` decides what to start, `state` is soak.json, `child` the run's process, `retention` deletes old runs,
`unit_files` writes systemd units, crontab lines and CronJobs. A new kind of unit file is one function and one entry in
`unit_files._KINDS`.
"""
