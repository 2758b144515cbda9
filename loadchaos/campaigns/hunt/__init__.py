"""Hunt: find failures that no profile describes. A workload is a small load made of genes (`genes`, `workload`).
`mutation` makes new workloads of old ones, `corpus` decides which one comes next by the feedback of all earlier ones
(analysis/coverage.py). `slot` is a process with a server of its own that runs workloads; `journal` keeps them on disk;
`findings` groups, replays and minimises what was found; `session` is one hunt from its begin to its end.
"""
