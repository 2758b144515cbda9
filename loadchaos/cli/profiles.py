"""`check`, `explain`, `profiles` and `init`: what a profile says, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import profile_names
from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.profile.profile import Profile

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override the profile: load.0.users=20."
)
_json = click.option("--json", "as_json", is_flag=True, help="The same as JSON.")


def profile_of(name: str, overrides: Sequence[str]) -> Profile:
    """A profile by its path or shipped name; ProfileError with every mistake in it."""
    from loadchaos.core import resources
    from loadchaos.load import registry
    from loadchaos.profile.profile import load

    return load(resources.profile(name), registry.whole(), overrides)


def _profile_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("profile", shell_complete=profile_names)(set_option(command))


@click.command()
@_profile_argument
@click.option("--seed", type=int, default=0)
@_json
def explain(profile: str, overrides: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Say in plain words what a profile will do and cost."""
    from loadchaos.profile.explain import explain as words
    from loadchaos.profile.pacing import planned_requests

    loaded = profile_of(profile, overrides)
    said = words(loaded, seed=seed)
    if as_json:
        _tell_json(
            {"profile": loaded.to_json(), "seed": seed, "requests": planned_requests(loaded.load, seed), "words": said}
        )
    else:
        click.echo(said)


@click.command()
@_profile_argument
@_json
def check(profile: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a profile; every mistake at once, with file, line and column."""
    loaded = profile_of(profile, overrides)
    if as_json:
        _tell_json({"good": True, "name": loaded.name, "profile": loaded.to_json()})
    else:
        click.echo(f"{profile}: good ({loaded.name})")


@click.command()
@_json
def profiles(as_json: bool) -> None:
    """List the shipped profiles, a line each."""
    from loadchaos.core import resources

    found = {name: profile_of(str(path), ()).about for name, path in resources.profiles().items()}
    if as_json:
        _tell_json([{"name": name, "about": about} for name, about in found.items()])
        return
    for name, about in found.items():
        click.echo(f"{name:22} {about}")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("profiles"))
def init(folder: Path) -> None:
    """Copy the shipped profiles into FOLDER (profiles/ here), to be changed at will; nothing is overwritten."""
    from loadchaos.core import resources

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in resources.profiles().items():
            copy = folder / path.name
            if copy.exists():
                click.echo(f"{copy}: is there already, left as it is")
                continue
            copy.write_bytes(path.read_bytes())
            click.echo(f"{copy}: {profile_of(name, ()).about}")
    except OSError as e:
        raise OptionError(f"{folder}: {e.strerror}; name a folder that can be written") from e


def _tell_json(value: Any) -> None:
    import orjson

    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
