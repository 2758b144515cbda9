"""Host and port of http and https URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def host_and_port(url: str) -> tuple[str, int]:
    """Split a URL, with the default port of its scheme filled in. Raises ValueError for a bad port."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 80)
