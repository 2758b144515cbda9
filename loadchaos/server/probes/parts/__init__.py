"""Parts of `correctness`: what is asked beside the load. To add a part: a subclass of `ProbePart` (base.py), its
options in profile/correctness.py, and a line in `PartSetup.parts` of loadchaos/run/run_probes.py.
"""
