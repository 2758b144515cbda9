"""`loadchaos probe`: report what a server is and which profiles fit it."""

from __future__ import annotations

import sys
from typing import Any

import click

from loadchaos.cli.common import (
    authorize_option,
    json_option,
    parse_header_options,
    print_json,
    server_options,
    url_argument,
    url_of,
)
from loadchaos.cli.environment import use_openai_variables
from loadchaos.cli.profiles import profile_of
from loadchaos.core.errors import OptionError


@click.command()
@url_argument
@server_options
@click.option("--lengths", is_flag=True, help="Find the longest accepted prompt, with at most 40 generations.")
@authorize_option("Allow --lengths, which can harm this server. Repeatable.")
@json_option()
def probe(url: str | None, target_option: str | None, lengths: bool, as_json: bool, **options: Any) -> None:
    """Report what a server is, what it accepts and which profiles fit it.

    Sends at most 20 reads and 3 small generations.
    """
    import asyncio

    import httpx

    from loadchaos.chaos import authorization
    from loadchaos.core import resources
    from loadchaos.core.tls import TlsSettings
    from loadchaos.run import probe as server_probe
    from loadchaos.run.asker import HttpAsker
    from loadchaos.run.options import Options, headers_of_options
    from loadchaos.server.discovery.calibrate import CalibrationRequest, DiscoveryClient, parse_target

    server: dict[str, Any] = {**options, "target": url_of(url, target_option)}
    use_openai_variables(server, needs_target=True)
    if server["target"] is None:
        raise OptionError("which server? Give its URL, e.g. http://127.0.0.1:8000, or set OPENAI_BASE_URL")
    api_key_env = server["api_key_env"]
    base = parse_target(server["target"])
    admin = parse_target(options["admin_url"]) if options["admin_url"] else base
    headers = headers_of_options(Options(api_key_env=api_key_env, headers=parse_header_options(options["headers"])))
    tls = TlsSettings(options["ca"], options["insecure"]).context()
    profiles = {name: profile_of(str(path), ()) for name, path in resources.profiles().items()}
    if lengths:
        authorization.check(admin, ["--lengths sends prompts at the edge of its context"], options["authorize"])

    async def ask() -> server_probe.ProbeResult:
        async with httpx.AsyncClient(headers=headers, verify=tls, trust_env=False) as client:
            request = CalibrationRequest(model=options["model"], api_key_env=api_key_env)
            return await server_probe.probe(
                DiscoveryClient(HttpAsker(client), base, admin), request, profiles, lengths=lengths
            )

    probed = asyncio.run(ask())
    if as_json:
        print_json(probed.to_json())
    else:
        click.echo(server_probe.page(probed))
    if probed.trouble:
        sys.exit(4)
