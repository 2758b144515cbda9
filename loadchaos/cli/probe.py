"""`loadchaos probe`: report what a server is and which profiles fit it."""

from __future__ import annotations

import sys
from typing import Any

import click

from loadchaos.cli.common import (
    authorize_option,
    flag,
    json_option,
    print_result,
    probed_server,
    server_options,
    url_argument,
    url_of,
)
from loadchaos.cli.environment import from_openai_variables
from loadchaos.cli.profiles import profile_of
from loadchaos.core.errors import OptionError


@click.command()
@url_argument
@server_options
@flag("--lengths", "Find the longest accepted prompt, with at most 40 generations.")
@authorize_option("Allow --lengths, which can harm this server. Repeatable.")
@json_option()
def probe(url: str | None, target_option: str | None, lengths: bool, as_json: bool, **options: Any) -> None:
    """Report what a server is, what it accepts and which profiles fit it.

    Sends at most 20 reads and 3 small generations.
    """
    import asyncio

    from loadchaos.chaos import authorization
    from loadchaos.core import resources
    from loadchaos.run.probe import page
    from loadchaos.server.discovery.client import parse_target

    options["target"] = url_of(url, target_option)
    options |= from_openai_variables(options, needs_target=True)
    if options["target"] is None:
        raise OptionError("which server? Give its URL, e.g. http://127.0.0.1:8000, or set OPENAI_BASE_URL")
    profiles = {name: profile_of(str(path), ()) for name, path in resources.profiles().items()}
    if lengths:
        harm = ["--lengths sends prompts at the edge of its context"]
        for url in filter(None, (options["target"], options["admin_url"])):
            authorization.check(parse_target(url), harm, options["authorize"])
    probed = asyncio.run(probed_server(options["target"], profiles, options, lengths=lengths))
    print_result(as_json, probed.to_json, lambda: page(probed))
    if probed.trouble:
        sys.exit(4)
