"""HTML pages: report, comparison, soak trend, tabs of the web UI.

`page.py` renders report.html. `plots.py` defines its charts, `charts.py` and `heatmaps.py` draw them as SVG, and
`uplot_data.py` with report.js makes them interactive. To add a chart, add it to `plots.py`.
"""
