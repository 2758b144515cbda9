"""The ledger: append-only JSON lines that link load and analysis.

`rows` declares every kind of row. `writer` appends, `reader` reads back or follows, `folder` names the files.
`recorder` writes the files of the run process, `batch` folds successful requests into one row while disk space is
low, and `parquet` converts finished parts. To add a kind of row: declare it in `rows.py`, write it, and run `make
docs`.
"""
