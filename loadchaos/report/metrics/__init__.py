"""Prometheus and Grafana."""
