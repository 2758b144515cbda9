"""`loadchaos record`: a proxy that records production traffic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from loadchaos.cli.common import PATH, ca_option, flag, insecure_option, option, say
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately
from loadchaos.core.urls import DEFAULT_PORTS, host_port

if TYPE_CHECKING:
    from loadchaos.campaigns.recorder.proxy import Upstream


def _rate(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    from loadchaos.core.units import share

    if text is None:
        return None
    name, separator, value = text.replace(" ", "").partition(">")
    try:
        if name.replace("_", "-") != "error-rate" or not separator:
            raise ValueError("error-rate>5% was expected")
        return share(value)
    except ValueError as e:
        raise OptionError(f"--freeze-on {text!r}: {e}; give a rate such as error-rate>5%") from None


def _bytes(_: click.Context, __: click.Parameter, text: str) -> int:
    from loadchaos.core.units import byte_count

    try:
        size = byte_count(text)
    except ValueError as e:
        raise OptionError(f"--max-size: {e}") from None
    if size < 1 << 20:
        raise OptionError(f"--max-size {text}: at least 1MB was expected")
    return size


@click.command()
@option("--upstream", "Server whose requests are recorded.", "URL", required=True)
@option("--listen", "Address for the clients; port 0: a free one.", "HOST:PORT", required=True)
@option("--out", "Folder of the recording.", required=True, type=PATH)
@option(
    "--minutes",
    "Keep the requests of the newest minutes.",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
)
@option("--max-size", "Maximum size of the recording.", "SIZE", default="1GB", show_default=True, callback=_bytes)
@flag("--bodies", "Keep the bodies of requests, without secrets. Default: only their shapes.")
@option(
    "--freeze-on most_failed",
    "Keep the recording when a larger share of requests fails.",
    "'error-rate>X'",
    callback=_rate,
)
@ca_option
@insecure_option
def record(upstream: str, listen: str, out: Path, **options: Any) -> None:
    """Record the newest requests of a production server, as a proxy.

    The oldest requests are deleted. The recording is kept as frozen-* and a new one begins when the engine dies, when the
    limit of --freeze-on is exceeded, or on SIGUSR1. `loadchaos replay` sends the requests of a recording again. Ctrl-C
    ends the recording when the open answers are complete.
    """
    import uvloop

    from loadchaos.campaigns.recorder.recorder import RecordingSession, RecordOptions
    from loadchaos.campaigns.recorder.ring import RingLimits

    create_privately()
    host, port = listen_address(listen)
    server, url = _upstream(upstream, options["ca"], insecure=options["insecure"])
    limits = RingLimits(options["minutes"] * 60, options["max_size"])
    given = RecordOptions(server, url, host, port, out, limits, options["bodies"], options["most_failed"])

    async def run() -> int:
        return await RecordingSession(given, say).run()

    sys.exit(uvloop.run(run()))


def listen_address(text: str, option: str = "--listen") -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise OptionError(f"{option} {text}: HOST:PORT such as 0.0.0.0:8000 was expected")
    return host.strip("[]") or "0.0.0.0", int(port)


def _upstream(text: str, ca: str | None, *, insecure: bool) -> tuple[Upstream, str]:
    from loadchaos.campaigns.recorder.proxy import Upstream
    from loadchaos.core.tls import TlsSettings

    expected = "http://HOST:PORT or https://HOST:PORT was expected"
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (KeyError, ValueError):
        raise OptionError(f"--upstream: {expected}") from None
    if not parts.hostname or parts.username or parts.password or parts.path.strip("/") or parts.query:
        raise OptionError(
            f"--upstream: {expected}, without a user, a path or a query: requests are passed on unchanged"
        )
    tls = TlsSettings(ca, insecure).context() if parts.scheme == "https" else None
    return Upstream(parts.hostname, port, tls), f"{parts.scheme}://{host_port(parts.hostname, port)}"
