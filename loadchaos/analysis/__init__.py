"""Analysis: ledger rows in, findings and the verdict out.

Nothing here acts, and its time is that of the newest row.

Main types: `RunFigures` (figures/run_figures.py), `Judge` (judge.py), `Failure` (failure.py) and `Verdict`
(verdict/model.py). The path of a log line: classify/ -> Failure -> incidents/ -> verdict/. state/ decides the state of a
server, detectors/ find what no log reports.
To add a failure that a log names, add an entry to signatures/; for any other, a detector (detectors/suite.py).
"""
