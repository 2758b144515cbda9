"""The ledger: append-only JSON lines that link load and analysis. To add a kind of row: declare it in `rows.py`, write it,
and run `make docs`.
"""
