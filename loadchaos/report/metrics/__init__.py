"""Prometheus metrics. To add one, add it to `metric_table.py`, fill it in `exporter.py`, and run `make dashboards docs`."""
