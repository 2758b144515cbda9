"""Live numbers (`Fold`) and time series (`Series`) from ledger rows.

To add a figure, fold it in `fold.py` or `buckets.py` and show it in `terminal/live.py` or `html/plots.py`.
"""
