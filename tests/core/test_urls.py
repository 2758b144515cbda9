import pytest

from loadchaos.core.urls import host_and_port, http_parts, unused_proxy


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("http://a", "a", 80), ("https://a/v1", "a", 443), ("https://[::1]:8000", "::1", 8000), ("", "", 80)],
)
def test_host_and_port_fills_in_the_default_port(url: str, host: str, port: int) -> None:
    assert host_and_port(url) == (host, port)


@pytest.mark.parametrize("url", ["a:8000", "ftp://a", "http://"])
def test_http_parts_refuses_what_is_no_http_url(url: str) -> None:
    with pytest.raises(ValueError, match="a URL such as"):
        http_parts(url)


@pytest.mark.parametrize(
    ("url", "variables", "named"),
    [
        ("http://llm.example.com:8000", {"HTTP_PROXY": "http://p:3128"}, "HTTP_PROXY"),
        ("https://llm.example.com", {"HTTP_PROXY": "http://p:3128"}, None),
        ("https://llm.example.com", {"https_proxy": "http://p:3128"}, "HTTPS_PROXY"),
        ("https://llm.example.com", {"ALL_PROXY": "socks5://p:1080"}, "ALL_PROXY"),
        ("https://llm.example.com", {"ALL_PROXY": "http://p:3128", "NO_PROXY": "example.com"}, None),
        ("http://llm.example.com:8000", {"HTTP_PROXY": "http://p:3128", "NO_PROXY": "llm.example.com:8000"}, None),
        ("http://127.0.0.1:8000", {"HTTP_PROXY": "http://p:3128"}, None),
        ("http://llm.example.com:8000", {}, None),
    ],
)
def test_proxy_variable_that_would_apply_is_named(
    url: str, variables: dict[str, str], named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert unused_proxy(url) == named
