"""Host and port of http and https URLs."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that mean this machine."""
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
DEFAULT_PORTS = {"http": 80, "https": 443}


def http_parts(url: str) -> SplitResult:
    """Split a URL. Raises ValueError where it is no http(s) URL with a host."""
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"a URL such as http://127.0.0.1:8000 was expected (got {url!r})")
    return parts


def host_and_port(url: str) -> tuple[str, int]:
    """Split a URL, with the default port of its scheme filled in. Raises ValueError for a bad port."""
    parts = urlsplit(url)
    return parts.hostname or "", DEFAULT_PORTS.get(parts.scheme, 80) if parts.port is None else parts.port


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
