"""HTML pages: report, comparison, soak trend, tabs of the web UI. To add a chart to report.html, add it to `plots.py`."""
