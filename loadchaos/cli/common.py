"""Options and printing shared by the commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import CompletionItem

from loadchaos.cli.help import Decorator, GroupedOption, in_group
from loadchaos.core.errors import OptionError
from loadchaos.core.urls import MODELS_PATH

if TYPE_CHECKING:
    from loadchaos.campaigns.campaign import Campaign
    from loadchaos.core.redact import Redactor
    from loadchaos.profile.profile import Profile
    from loadchaos.run.options import Options
    from loadchaos.run.probe import ProbeResult

Given = Mapping[str, Any]
"""Values of the options of a command, by the names of its parameters."""
COUNT, ABOVE_ZERO = click.IntRange(min=1), click.FloatRange(min=0, min_open=True)
PATH, FOLDER = click.Path(path_type=Path), click.Path(path_type=Path, exists=True, file_okay=False)


def option(names: str, help: str, metavar: str | None = None, **more: Any) -> Decorator:  # noqa: A002 - as click has it
    """An option by all its names, with spaces between them."""
    return click.option(*names.split(), help=help, metavar=metavar, cls=GroupedOption, **more)


def flag(names: str, help: str, **more: Any) -> Decorator:  # noqa: A002
    return option(names, help, is_flag=True, **more)


def time_option(names: str, help: str, *, positive: bool = False, **more: Any) -> Decorator:  # noqa: A002
    """An option with a time such as `30s`, in seconds. Plain digits are seconds, as in Locust's --run-time."""

    def parsed(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        from loadchaos.core.units import duration_s

        if value is None:
            return None
        try:
            found = duration_s(f"{value}s" if value.isdecimal() else value)
            if positive and not found:
                raise ValueError(f"more than 0 was expected (got {value!r})")
        except ValueError as e:
            raise OptionError(f"--{(parameter.name or '').replace('_', '-')}: {e}") from None
        return found

    return option(names, help, "TIME", callback=parsed, **more)


def out_option(help: str, default: str = "runs") -> Decorator:  # noqa: A002
    return option("--out", help, type=PATH, default=Path(default), show_default=True)


def json_option(help: str = "Print the result as JSON.") -> Decorator:  # noqa: A002
    return flag("--json as_json", help)


def authorize_option(help: str) -> Decorator:  # noqa: A002
    return option("--authorize", help, "HOST:PORT", multiple=True)


def expect_option(help: str) -> Decorator:  # noqa: A002
    return option("--expect", help, "RULE", multiple=True)


def together(*options: Decorator) -> Decorator:

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(options):
            command = one(command)
        return command

    return add


wait_ready_option = time_option("--wait-ready", "Wait at most this long for a healthy server.")
no_questions_option = flag(
    "--no-questions", "Ask no questions before and beside the load; wrong answers to them stay unknown."
)
shared_option = flag("--shared", "Run even if other clients use the server.")
server_log_option = option(
    "--server-log", "Log of the server, as for `loadchaos run`. Repeatable.", "SOURCE", multiple=True
)
launch_option = option("--launch", "Launch command of the server, e.g. 'vllm serve MODEL --port 8000'.", "COMMAND")
rounds_option = option("--rounds", "Send the requests at least this many times in each try.", type=COUNT, default=1)
ca_option = option("--ca", "Trust the certificates in this PEM file, not the system's.", "FILE")
insecure_option = flag("-k --insecure", "Accept any certificate.")
page_option = option("--html page", "Also write an HTML page.", "FILE", type=click.Path(path_type=Path, dir_okay=False))
no_live_option = flag("--no-live", "Print plain lines, not the live view.")
verbose_option = flag("-v --verbose", "Print every check and table, also those without anything unusual.")
yes_option = flag("--yes", "Allow what a folder of somebody else asks for, such as its launch command.")
_RUN_OPTIONS = (
    "target", "admin_url", "model", "api_key_env", "tokenizer", "server_log", "out", "seed", "authorize", "shared", "pid",
    "embedded", "processes", "duration_is_end",
)  # fmt: skip
_SERVER_OPTIONS = (
    in_group("Server", option("--admin-url", "URL of /health, /metrics and the admin endpoints, if different.", "URL")),
    option("--model", "Model name in requests (default: the server's first model).", "NAME"),
    option("--api-key-env", "Environment variable with the API key. The key is never stored.", "VAR"),
    in_group(
        "Server",
        option(
            "--header headers", "Extra header: NAME=env:VAR or NAME=text. Repeatable.", "NAME=env:VAR", multiple=True
        ),
        ca_option,
        insecure_option,
    ),
)


exporter_port_option = option(
    "--exporter-port",
    "Prometheus port (default: 9646, or a free port if that is in use). 0 selects a free port.",
    type=click.IntRange(0, 65535),
)


server_options = together(*_SERVER_OPTIONS)
"""Options that say how to reach a server."""
launched_server_options = together(*_SERVER_OPTIONS[1:])
"""Options of a server that loadchaos starts: its launch command has the address."""


def base_url(url: str) -> str:
    """The URL without the path of an endpoint, which people copy with it; a note says so."""
    if url.rstrip("/").count("/") < 3:
        return url
    from loadchaos.load.endpoints import ENDPOINTS

    paths = (MODELS_PATH, *(endpoint.path for endpoint in ENDPOINTS.values()))
    for path in (*paths, *(known.removeprefix("/v1") for known in paths)):
        if url.rstrip("/").endswith(path):
            base = url.rstrip("/").removesuffix(path)
            say(f"note: the target is {base}: {path} is an endpoint of it, which --endpoint NAME of `run` chooses")
            return base
    return url


def _one_target(_: click.Context, __: click.Parameter, urls: Sequence[str]) -> str | None:
    if len(set(urls)) > 1:
        raise OptionError(f"two servers: --target {urls[0]} and --target {urls[1]}; give one")
    return base_url(urls[0]) if urls else None


def target_option(names: str, help: str) -> Decorator:  # noqa: A002
    return option(names, help, "URL", multiple=True, callback=_one_target)


url_argument = together(
    click.argument("url", required=False, callback=lambda _, __, url: url and base_url(url)),
    target_option("-H --target target_option", "The same as the argument URL."),
)
"""The argument URL, and `--target` as in other commands. The command reads both with `url_of`."""


def url_of(url: str | None, target_option: str | None) -> str | None:
    if url is not None and target_option is not None and url != target_option:
        raise OptionError(f"two servers: {url} and --target {target_option}; give one")
    return url if target_option is None else target_option


def refuse_bound(host: str, port: int, option: str, instead: str) -> None:
    """Raise OptionError where an address that an option names is in use."""
    from loadchaos.run.ports import bindable_port

    try:
        bindable_port(host, port)
    except OSError as e:
        raise OptionError(f"{option} is in use ({e.strerror or e}); choose another{instead}") from None


def free_exporter_port(port: int | None) -> int | Literal["default"]:
    if port is None:
        return "default"
    refuse_bound("127.0.0.1", port, f"--exporter-port {port}", ", or 0 for a free port")
    return port


def parse_header_options(texts: Sequence[str]) -> Mapping[str, str]:
    return named_values("--header", texts, "NAME=env:VAR or NAME=text")


def named_values(option: str, texts: Sequence[str], expected: str) -> dict[str, str]:
    """Parse a repeatable option such as `--flag NAME=VALUE`. Raises OptionError that says what was expected."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise OptionError(f"{option} {text!r}: {expected} was expected")
        found[name.strip()] = value
    return found


def options_of(given: Given, **more: Any) -> Options:
    """Options of runs from those of a command: the ones of the same name, `wait_ready` and `duration`, and `more`."""
    from loadchaos.core.tls import TlsSettings
    from loadchaos.run.options import Options

    found = {name: given[name] for name in _RUN_OPTIONS if name in given}
    times = {f"{name}_s": given[name] for name in ("wait_ready", "duration") if name in given}
    headers, tls = parse_header_options(given["headers"]), TlsSettings(given["ca"], given["insecure"])
    return Options(**{**found, **times, "headers": headers, "tls": tls, **more})


async def probed_server(
    url: str, profiles: Mapping[str, Profile], options: Given, *, lengths: bool = False
) -> ProbeResult:
    """Find out what the server of `server_options` is, and which profiles fit it."""
    from loadchaos.run import probe
    from loadchaos.run.discovery_client import discovery_client
    from loadchaos.run.options import headers_of_options
    from loadchaos.server.discovery.client import CalibrationRequest, parse_target

    base, settings = parse_target(url), options_of(options)
    admin = parse_target(options["admin_url"]) if options["admin_url"] else base
    request = CalibrationRequest(model=settings.model, api_key_env=settings.api_key_env)
    headers, tls = headers_of_options(settings), settings.tls.context()
    async with discovery_client(base, admin, headers=headers, tls=tls) as client:
        return await probe.probe(client, request, profiles, lengths=lengths)


def process_count(_: click.Context, __: click.Parameter, value: str) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise OptionError(f"--processes: a number of at least 1, or auto, was expected (got {value})")


def _allow(_: click.Context, __: click.Parameter, folders: tuple[str, ...]) -> None:
    from loadchaos.load.payloads import images_by_path

    images_by_path.allow(folders)


allow_path_option = option(
    "--allow-path",
    "Let a requests file name images in this folder too. Repeatable.",
    "DIR",
    multiple=True,
    expose_value=False,
    is_eager=True,
    callback=_allow,
)


def profile_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    from loadchaos.core import resources

    names = [CompletionItem(name) for name in resources.profiles() if name.startswith(typed)]
    return names or [CompletionItem(typed, type="file")]


def echo(text: str, *, err: bool = False) -> None:
    """Print lines without what a server may have put into them to control a terminal and without our keys, which it may
    repeat, and ignore a closed pipe or terminal. The exit code still counts then.
    """
    from loadchaos.report.formatting import printable

    try:
        click.echo(printable(_redactor().known(text), color=not err and sys.stdout.isatty()), err=err)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2 if err else 1)


def _redactor() -> Redactor:
    """Redactor of the secrets of the environment and of the options of the command."""
    from loadchaos.core.redact import Redactor

    ctx = click.get_current_context(silent=True)
    given = {} if ctx is None else ctx.params
    headers = [text.partition("=")[2] for text in given.get("headers") or ()]
    redactor = Redactor.from_environment(os.environ)
    for value in (f"env:{given.get('api_key_env')}", *headers):
        name = value.removeprefix("env:")
        redactor.add((value if name == value else os.environ.get(name, "")).removeprefix("Bearer "))
    return redactor


def say(text: str) -> None:
    """Print a line of progress: on stderr, so that stdout has the result alone."""
    echo(text, err=True)


def print_json(value: Any) -> None:
    import orjson

    # All but ASCII is escaped where a terminal might obey it: the value stays the same.
    text = _redactor().known(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
    click.echo(text if text.replace("\n", "").isprintable() else json.dumps(orjson.loads(text), indent=2))


def print_result(as_json: bool, data: Callable[[], object], text: Callable[[], str]) -> None:
    if as_json:
        print_json(data())
    else:
        echo(text())


@contextmanager
def writing(path: Path, instead: str) -> Iterator[None]:
    """Raise OptionError where a file or folder that the user named cannot be written in the block."""
    try:
        yield
    except OSError as e:
        raise OptionError(f"{path}: {e.strerror}; {instead}") from e


def write_page(path: Path, html: str) -> None:
    with writing(path, "give --html a file that can be written"):
        path.write_text(html, encoding="utf-8")


def terminal_width() -> int | None:
    """Columns of the terminal, or None for a pipe or a file. Programs read pipes and files and need whole lines."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None


def text_width() -> int:
    """Width of printed text: the terminal's columns, from 60 to 140."""
    import shutil

    return max(60, min(shutil.get_terminal_size((100, 24)).columns, 140))


def terminal() -> tuple[bool, int]:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ, text_width()


def allow_foreign(folder: Path, asks: Sequence[str], given: Given, instead: str) -> None:
    """Show what a folder of somebody else asks for, and ask on a terminal. Raises OptionError where nobody allows it;
    `instead`: what else the user may do.
    """
    from loadchaos.core import own_folder
    from loadchaos.report.formatting import exact

    own_folder.refuse_links(folder)
    if not asks or own_folder.is_own(folder):
        return
    say("\n  ".join([f"{folder} was not made here by this user. It asks for:", *map(exact, asks)]))
    if given["yes"] or (sys.stdin.isatty() and click.confirm("Do this?", err=True)):
        return
    raise OptionError(
        f"{folder} was made by somebody else, or before loadchaos sealed its folders: {instead}, or give --yes"
    )


def campaign_in(folder: Path, what: str, print_line: Callable[[str], None] | None = None) -> Campaign:
    """Campaign of a command, which locks its folder until it ends. Raises OptionError when another process has it."""
    from loadchaos.campaigns.campaign import Campaign

    found = Campaign(folder, print_line or say)
    found.lock(f"loadchaos {what}")
    click.get_current_context().call_on_close(found.close)
    return found


def resumed_command(folder: Path | None = None) -> str:
    import shlex

    from loadchaos.core.redact import Redactor

    words = Redactor.from_environment(os.environ).argv(sys.argv[1:])
    more = [] if "--resume" in words else ["--resume", *([str(folder)] if folder else [])]
    return shlex.join(["loadchaos", *words, *more])
