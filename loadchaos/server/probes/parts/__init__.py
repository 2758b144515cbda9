"""Parts of `correctness`, one file each: ask questions beside the load.

To add a part: a class as `ProbePart` (base.py) describes, its options in profile/correctness.py, and an entry in `PARTS` of
loadchaos/run/run_probes.py.
"""
