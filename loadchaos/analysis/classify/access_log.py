"""Read access logs: requests that were answered, and those that were answered with 5xx."""

from __future__ import annotations

import re

from loadchaos.analysis.classify.prefixes import ISO_STAMP, clock

ANSWER = re.compile(
    r'" 200(?: |$)|log_server_r: .* 200$|slot +release: |\| +200 \|.*POST'
    r'|"(?:response_code|[sS]tatus|DownstreamStatus)": ?"?200\b'
    r"|status=200\b|\bPOST /\S* 200 (?:\d|in )|\b200 \d+ - - ---- |equest (?:handled|routed)|completion routed"
)
"""Answered request, in the words of uvicorn, nginx, llama.cpp, gin (Ollama), Envoy, Traefik, HAProxy, Ray Serve, Node and
routers.
"""
_NO_PROBE = r'(?!/[^\s"]*(?:health|ready|live|ping|metrics))'
"""Begin of a path that is no health check and no page of metrics."""
GENERATED = re.compile(
    r"\bPOST\b.{0,300}?/\S{0,200}?(?:completion|generate|messages|responses|embed|rerank|score|chat|infer)"
)
REFUSED = re.compile(
    rf'"(?:GET|POST) {_NO_PROBE}(?P<path>(?:/[^/\s?"]++){{1,3}}+|/(?![^\s?"]))'
    r'[^\s"]*+(?: HTTP/[\d.]+)?" (?P<status>50[0245])\b'
    r'|\| (?P<gin>50[0245]) \|.*\| +(?:GET|POST) +"?(?P<gin_path>/[^"?\s]+)'
)
"""Request that an access log answers with 5xx, in the words of uvicorn, nginx and gin (Ollama). 503 is a refusal."""
_POSTED = re.compile(
    r"\bPOST (?P<ray>/\S+) (?P<ray_status>50[0245]) (?:\d|in )|request: POST (?P<cpp>/\S+) \S+ (?P<cpp_status>50[0245])$"
    r'|/\d+ (?P<haproxy_status>50[0245]) \d+ - - ---- .*"POST (?P<haproxy>/[^ ?"]+)'
)
"""The same in the words of Ray Serve, Node, llama.cpp and HAProxy, where the server itself answered so."""
_PAIRS = re.compile(rf'\b(?:uri|path|url)="?{_NO_PROBE}(?P<path>/[^\s"?,}}]*)')
_PAIRED_STATUS = re.compile(r"\bstatus=(?P<status>50[0-5])\b")
"""The same in pairs, as gateways in Go and Rust write them, 503 included."""
_STATUS = re.compile(
    r'"(?:DownstreamStatus|(?:response_?)?(?:[sS]tatus|[cC]ode)(?:_?[cC]ode)?)": ?"?(?P<status>50[0-5])\b'
)
_PATH = re.compile(
    r'"(?:RequestPath|(?:request_)?(?:uri|path|url)|x-envoy-origin-path)": ?"'
    rf'{_NO_PROBE}(?P<path>(?:/[^/?"]++){{1,3}}+|/(?=[?"]))'
)
_SERVER = re.compile(r'"(?:ServiceURL|upstream(?:_host|_addr)?)": ?"(?P<server>[^"\s]{3,80})"')
_CLF_TIME = re.compile(r"\[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/\d{4}:(?P<time>\d\d:\d\d:\d\d)")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def refusal(line: str) -> str:
    """The 5xx of an access log's line: `502 for /v1/completions by http://10.0.0.4:8000`; "" for another line."""
    if '" 50' in line or "| 50" in line:
        found = REFUSED.search(line)
        return (
            f"{found['status'] or found['gin']} for {found['path'] or found['gin_path']}" if found is not None else ""
        )
    if "POST /" in line and '" 2' not in line and (found := _POSTED.search(line)) is not None:
        name = next(n for n in ("ray", "cpp", "haproxy") if found[n])
        return f"{found[name + '_status']} for {found[name]}"
    if "status=50" in line and (found := _PAIRS.search(line)) is not None:
        status = _PAIRED_STATUS.search(line)
        return f"{status['status']} for {found['path']}" if status is not None else ""
    # A record of a gateway: Traefik, Caddy, Envoy, nginx.
    if not line.endswith("}") or not ('":50' in line or '": 50' in line or '":"50' in line or '": "50' in line):
        return ""
    status, path, server = _STATUS.search(line), _PATH.search(line), _SERVER.search(line)
    if status is None or path is None:
        return ""
    return f"{status['status']} for {path['path']}" + (f" by {server['server']}" if server is not None else "")


def time_of(line: str) -> float | None:
    """Time of an access log's line, as `LogLine.clock_s`."""
    if (found := ISO_STAMP.search(line)) is not None:
        return clock(found["day"], found["time"])
    found = _CLF_TIME.search(line)
    if found is None or found["month"] not in _MONTHS:
        return None
    return clock(f"{_MONTHS.index(found['month']) + 1:02d}-{found['day']}", found["time"])
