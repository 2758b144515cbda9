"""Prometheus metrics and Grafana dashboards.

`metric_table.py` lists every metric, `exporter.py` serves them, `dashboards.py` generates dashboards/*.json and `stack.py`
provisions Prometheus and Grafana. To add a metric, add it to the table and fill it in `exporter.py`; then run
`make dashboards docs`.
"""
