"""Detectors: find faults that no log line reports.

Main type: `Detector` (base.py): `on_<kind>` for each kind of row, `poll` now and then, `finish` at the end. To add one,
write a file with a subclass of `Detector`; suite.py finds it. Title and remedy of a new failure id are an entry of
signatures/figures.toml. Test it with the `history` fixture of tests/analysis/conftest.py.
"""
