"""Host and port of http and https URLs."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that mean this machine."""
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MODELS_PATH = "/v1/models"
DEFAULT_PORTS = {"http": 80, "https": 443}
_V1 = "/v1"


@dataclass(frozen=True)
class ApiPaths:
    """Paths of a server's API: `root` stands where OpenAI has /v1, `query` (such as ?api-version=1) follows each path."""

    root: str = _V1
    query: str = ""

    def path(self, path: str) -> str:
        """The path that is sent for one of OpenAI. Others, and those with a query, are sent as they are."""
        if not path.startswith(f"{_V1}/") or "?" in path:
            return path
        return self.root + path.removeprefix(_V1) + self.query

    @classmethod
    def of(cls, sent: str, path: str) -> ApiPaths:
        """Make those of a server that has the path `sent` for one of OpenAI."""
        bare, mark, query = sent.partition("?")
        return cls(bare.rstrip("/").removesuffix(path.removeprefix(_V1)), mark + query)


V1 = ApiPaths()


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


def unused_proxy(url: str) -> str | None:
    """Name the proxy variable that other programs would use for a URL, and loadchaos does not. NO_PROXY may exclude it."""
    host, port = host_and_port(url)
    proxies = getproxies_environment()
    name = next((kind for kind in (urlsplit(url).scheme, "all") if proxies.get(kind)), None)
    if name is None or host in LOOPBACK or proxy_bypass(host_port(host, port)):
        return None
    return f"{name.upper()}_PROXY"
