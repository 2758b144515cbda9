"""Detectors: find faults that no log line reports.

Main type: `Detector` (base.py): `feed` every row, `poll` now and then, `finish` at the end. To add one, write a file with
a `Detector` and add it to the `DETECTORS` table in suite.py.
"""
