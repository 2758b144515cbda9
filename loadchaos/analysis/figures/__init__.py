"""Figures of a run: one fold of its rows that verdict, live view, metrics, report and exports read.

Main type: `RunFigures` (run_figures.py). Its parts count requests, goodput, throughput, efficiency and sessions; `live` adds
the gauges of one moment, `series` the time series of the charts.
"""
