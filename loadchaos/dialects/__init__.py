"""SHELF of values: what each kind of server calls its endpoints, metrics and errors. Data only; whoever needs it acts.

A new dialect is one file with one `Dialect` value, and one entry in DIALECTS.
"""

from __future__ import annotations

from loadchaos.dialects._dialect import AdminOperation, Dialect, MetricName

__all__ = ["AdminOperation", "Dialect", "MetricName"]
