"""loadchaos in Locust's web UI: status strip, tabs, attack buttons, login.

`extension.py` adds routes and hooks to Locust's Flask app, `auth.py` protects them, `webui.js` changes the page. A new
tab is an entry of `_TABS` and `_PANELS`, a page made by report/html/web_panels.py, and an entry of PANELS in `webui.js`.
"""
