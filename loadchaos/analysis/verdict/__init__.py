"""Verdict of a run: expectations, checks, exit code, strength.

Main functions: `verdict.decide` and `expectations.judge`. To add an expectation, add its name
to `NAMES` in core/expectation_names.py, and where its figure is made: a count to `figures_of` in verdict.py, another one
as a function to `_SPECIAL` in expectations.py.
"""
