"""Ledger rows folded into numbers for live views and charts."""
