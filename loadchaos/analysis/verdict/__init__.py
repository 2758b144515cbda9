"""Verdict of a run: expectations, checks, exit code, strength.

Main functions: `verdict.decide` and `expectations.judge`. To add an expectation, add its name
to `NAMES` in profile/expectation.py, then to `_COUNTS` or `_figure` in expectations.py, and its figure to
`ExpectationInputs`.
"""
