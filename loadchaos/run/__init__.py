"""One run of a profile, step by step: `run.run` performs the steps, and each is one line in `_Run._steps`."""
