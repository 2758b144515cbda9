"""Head of a request: its headers as bytes, and where their values come from."""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.core.errors import OptionError
from loadchaos.core.version import __version__

DEFAULT_HEADERS: Mapping[str, str] = {
    "User-Agent": f"loadchaos/{__version__}",
    "Accept": "text/event-stream, application/json",
}
"""Headers of all requests; X-Request-Id is added for each one (worker/worker_plan.py)."""


def headers_from_plan(headers: Mapping[str, str], api_key_env: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """Resolve `env:VAR` in the headers of a plan. Raises OptionError for a variable that is not set."""
    found: dict[str, str] = {}
    if api_key_env and env.get(api_key_env):
        found["Authorization"] = f"Bearer {env[api_key_env]}"
    for name, value in headers.items():
        variable = value.removeprefix("env:") if value.startswith("env:") else None
        if variable is not None and variable not in env:
            raise OptionError(f"header {name}: the variable {variable} is not set: export it here")
        found[name] = env[variable] if variable is not None else value
    return found


def request_head(path: str, host: str, headers: Mapping[str, str], content_type: str = "application/json") -> bytes:
    """Build the head of a POST up to its Content-Length. Raises ValueError for a header that would break out of its line."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Type: {content_type}"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value or not name.isascii() or ":" in name or "\n" in name:
            raise ValueError(f"header {name!r} cannot be sent")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, ""]).encode("utf-8")


def content_length(body: bytes) -> bytes:
    """Build the Content-Length line and the empty line that end a head."""
    return b"Content-Length: %d\r\n\r\n" % len(body)
