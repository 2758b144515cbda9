"""A run for other tools: CI, notifications, OpenMetrics, tables."""
