import pytest

from loadchaos.core.urls import host_and_port, http_parts


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
