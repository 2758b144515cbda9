"""Options from the environment: LOADCHAOS_* and OPENAI_* variables. `LOADCHAOS_RUN_TARGET` is `loadchaos run --target`.
A key is used only for the host that it belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from loadchaos.cli.common import Given
from loadchaos.core.urls import DEFAULT_PORTS

PREFIX = "LOADCHAOS"
BASE_URL, API_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
_OPENAI = "https://api.openai.com/v1"


def openai_target() -> str | None:
    return os.environ.get(BASE_URL) or None


def key_variable(url: str | None, headers: Iterable[str]) -> str | None:
    """Name of the variable with the key for a server; None: there is none. OPENAI_API_KEY belongs to the host of
    OPENAI_BASE_URL, and without that to api.openai.com. A header of the user goes before it.
    """
    has_header = any(text.partition("=")[0].strip().lower() == "authorization" for text in headers)
    if url is None or has_header or not os.environ.get(API_KEY):
        return None
    return API_KEY if _host(url) == _host(openai_target() or _OPENAI) else None


def _host(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError:  # a bad port: the check of the target says so
        return "", url, None


def from_openai_variables(options: Given, *, needs_target: bool, replicas: Iterable[str] = ()) -> dict[str, str]:
    """Target and key for a command that was given neither. `needs_target`: the profile has no server of its own.
    `replicas`: URLs of the profile that get the headers too.
    """
    found = {}
    if needs_target and options["target"] is None and (url := openai_target()) is not None:
        found["target"] = url
        click.echo(f"note: the target is {BASE_URL}", err=True)
    target = found.get("target", options["target"])
    if options["api_key_env"] is not None or (name := key_variable(target, options["headers"])) is None:
        return found
    named = [("--admin-url", options["admin_url"]), *(("a replica of the profile", url) for url in replicas)]
    other = next((what for what, url in named if url and _host(url) != _host(str(target))), None)
    if other is not None:
        click.echo(
            f"note: {name} is not used: {other} is another host; give --api-key-env {name} to send it there", err=True
        )
        return found
    click.echo(f"note: {name} is sent to the target", err=True)
    return {**found, "api_key_env": name}


def name_variables(command: click.Command) -> None:
    """Name variables by the long names of options; click takes the parameter's, which users do not type."""
    for option in command.params:
        if isinstance(option, click.Option) and option.envvar is None and option.allow_from_autoenv:
            long = [text[2:] for text in option.opts if text.startswith("--")]
            option.envvar = [f"{PREFIX}_{command.name}_{text}".replace("-", "_").upper() for text in long]


def words_from_environment(ctx: click.Context) -> list[str]:
    """Options that variables gave, as words of the command line, which the record of a run has."""
    words: list[str] = []
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if not isinstance(parameter, click.Option) or ctx.get_parameter_source(name) is not ParameterSource.ENVIRONMENT:
            continue
        value: Any = ctx.params[name] if parameter.is_flag else parameter.value_from_envvar(ctx)
        if parameter.is_flag:
            words += (parameter.opts if value else parameter.secondary_opts)[:1] if value is not None else []
        else:
            words += [f"{parameter.opts[-1]}={text}" for text in (value if parameter.multiple else [value])]
    return [word for word in words if not word.endswith("=None")]


HELP = (
    f"Every option can be given by a variable: `{PREFIX}_RUN_TARGET` is `loadchaos run --target`. Where neither the options "
    f"nor the profile name a server, `run`, `probe` and `suite` use `{BASE_URL}`. `{API_KEY}` is sent to the host of "
    f"`{BASE_URL}` only, and to api.openai.com without it; it is not used where `--admin-url` or a replica is another host."
)
"""Explanation of the variables, for the page of commands."""
