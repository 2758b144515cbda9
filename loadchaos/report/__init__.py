"""Reports of a run for people and machines. `phrases.py` has the display text of every check, state and outcome,
`formatting.py` the formats of numbers and times. To add a check, state or outcome, add its text to `phrases.py`; a test
fails until it is there.
"""
