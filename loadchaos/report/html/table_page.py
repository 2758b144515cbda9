"""Page of headings and tables, without scripts or other files."""

from __future__ import annotations

import html

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1f2328 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem; border-top: 1px solid #d0d7de; padding-top: .6rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: 14px }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #d0d7de; vertical-align: top;
  font-variant-numeric: tabular-nums }
td.n, th.n { text-align: right; white-space: nowrap }
code { font: 12.5px/1.45 ui-monospace, monospace; overflow-wrap: anywhere }
.card { border: 1px solid #d0d7de; border-left: 5px solid #c0232f; border-radius: 6px; padding: .6rem .9rem;
  margin: .6rem 0 }
.dim { color: #59636e } svg { width: 100%; height: auto } svg text { font-size: 12px; fill: #59636e }
.bar { display: inline-block; height: .8rem; background: #0969da; vertical-align: middle }
.scroll { overflow-x: auto }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3 } th, td, h2, .card { border-color: #30363d }
  .dim, svg text { color: #9198a1; fill: #9198a1 } a { color: #6cb6ff }
}
"""


def table_page(title: str, body: str) -> str:
    """Page with a title as text and a body as HTML."""
    return f"""<!doctype html>
<html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">
<meta http-equiv=Content-Security-Policy content="default-src 'none'; style-src 'unsafe-inline'">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
{body}</body></html>
"""
