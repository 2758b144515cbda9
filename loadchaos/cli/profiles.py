"""`check`, `explain`, `profiles` and `init`: commands on profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadchaos.cli.common import allow_path_option, json_option, option, print_result, profile_names, together, writing

if TYPE_CHECKING:
    from loadchaos.profile.profile import Profile

set_option = option(
    "--set overrides", "Override a value of the profile, e.g. load.0.users=20. Repeatable.", "PATH=VALUE", multiple=True
)


def profile_of(name: str, overrides: Sequence[str]) -> Profile:
    from loadchaos.core import resources
    from loadchaos.load import registry
    from loadchaos.profile.profile import load

    return load(resources.profile(name), registry.full_registry(), overrides)


def acts_of(profile: Profile, *, foreign: bool = False) -> list[str]:
    """List what a profile does beside its requests: a command that it starts, logs and pages that it reads, dangers.
    `foreign`: nothing in it is a secret of the user.
    """
    from loadchaos.campaigns.replay.servers import ServerChoice, redacted_command, whole_command
    from loadchaos.report.formatting import exact
    from loadchaos.server.process.launcher import CommandLine

    launch, watch = profile.target.launch, profile.watch
    server = ServerChoice(CommandLine(launch.command, launch.env, launch.url)) if launch is not None else None
    starts = [f"starts {(whole_command if foreign else redacted_command)(server)}"] if server is not None else []
    logs = [f"reads the log {replica.log}" for replica in profile.target.replicas if replica.log]
    return [
        exact(text)
        for text in (*starts, *logs, *(f"reads {url}" for url in (*watch.dcgm, *watch.node)), *profile.dangers())
    ]


_profile_argument = together(click.argument("profile", shell_complete=profile_names), set_option, allow_path_option)


@click.command()
@_profile_argument
@option("--seed", "Seed of the first steps that are listed.", type=int, default=0, show_default=True)
@json_option()
def explain(profile: str, overrides: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Explain in plain words what a profile does and how much load it makes."""
    from loadchaos.profile.arrivals import planned_requests
    from loadchaos.profile.explain import explain as explain_profile

    loaded = profile_of(profile, overrides)
    text = explain_profile(loaded, seed=seed)
    print_result(
        as_json,
        lambda: {
            "profile": loaded.to_json(),
            "seed": seed,
            "requests": planned_requests(loaded.load, seed),
            "words": text,
        },
        lambda: text,
    )


@click.command()
@_profile_argument
@json_option()
def check(profile: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a profile and list every mistake with file, line and column.

    Without a mistake, list what it does beside its requests: the command that it starts, attacks, logs.
    """
    loaded = profile_of(profile, overrides)
    acts = acts_of(loaded)
    print_result(
        as_json,
        lambda: {"good": True, "name": loaded.name, "profile": loaded.to_json()},
        lambda: "\n  ".join([f"{profile}: no mistakes found (profile {loaded.name})", *acts]),
    )


@click.command()
@json_option()
def profiles(as_json: bool) -> None:
    """List the shipped profiles, one per line."""
    from loadchaos.core import resources

    found = {name: profile_of(str(path), ()).about for name, path in resources.profiles().items()}
    print_result(
        as_json,
        lambda: [{"name": name, "about": about} for name, about in found.items()],
        lambda: "\n".join(f"{name:22} {about}" for name, about in found.items()),
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("profiles"))
def init(folder: Path) -> None:
    """Copy the shipped profiles into FOLDER (default: profiles/).

    Edit the copies as you like. Existing files are not overwritten.
    """
    from loadchaos.core import resources

    with writing(folder, "name a folder that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in resources.profiles().items():
            copy = folder / path.name
            if copy.exists():
                click.echo(f"{copy}: exists already, not overwritten")
                continue
            copy.write_bytes(path.read_bytes())
            click.echo(f"{copy}: {profile_of(name, ()).about}")
