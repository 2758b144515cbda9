"""`loadchaos run --resume RUN` on the command line: how the run was called, with what is said otherwise this time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from loadchaos.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.plan.profile import Profile
    from loadchaos.resume import Point


def again(ctx: click.Context, folder: Path) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """(profile, overrides, options) of that run; options given now count instead. Its profile has its overrides in it."""
    from loadchaos.ledger import RunFolder
    from loadchaos.resume import arguments, hidden

    run = RunFolder(folder)
    given = {k: v for k, v in ctx.params.items() if ctx.get_parameter_source(k) is ParameterSource.COMMANDLINE}
    if "overrides" in given or "users" in given:
        raise OptionError("--resume goes on with the plan as it was: --set and --users would make another one")
    before = ctx.command.make_context("run", arguments(run)).params
    params = {**before, **given}
    for param in ctx.command.params:
        if hidden(params.get(str(param.name))):
            raise OptionError(f"--resume {folder}: {param.opts[0]} held a secret, which is not recorded: give it again")
    profile = given.get("profile") or str(run.profile)
    if "profile" not in given and hidden(run.profile.read_text("utf-8")):
        raise OptionError(
            f"--resume {folder}: the profile held a secret, which is not recorded: give the profile again"
        )
    options = {k: v for k, v in params.items() if k not in ("profile", "overrides")}
    return profile, (), {**options, "users": None, "dry_run": bool(given.get("dry_run"))}


def point(folder: Path, profile: Profile, seed: int) -> Point:
    """Where it goes on."""
    from loadchaos.ledger import RunFolder
    from loadchaos.resume import point as find

    return find(RunFolder(folder), profile, seed)
