"""`loadchaos run --resume RUN` on the command line: how the run was called, with what is said otherwise this time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.profile.profile import Profile
    from loadchaos.runner.resume import Point

_LEAST_S = 1.0
"""The time of a run counts from when its load process is started, its load from the first row of that."""


def again(ctx: click.Context, folder: Path) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """(profile, overrides, options) of that run; options given now count instead. Its profile has its overrides in it."""
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.runner.resume import hidden

    run = RunFolder(folder)
    given = _given(ctx)
    if "overrides" in given or "users" in given:
        raise OptionError("--resume goes on with the plan as it was: --set and --users would make another one")
    before = _called(ctx.command, run)
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


def _given(ctx: click.Context) -> dict[str, Any]:
    return {k: v for k, v in ctx.params.items() if ctx.get_parameter_source(k) is ParameterSource.COMMANDLINE}


def _called(command: click.Command, run: RunFolder) -> dict[str, Any]:
    """The options of a run; one that went on itself had those of the run before it, but for what was said anew."""
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.runner.resume import arguments, begin_row

    context, begun = command.make_context("run", arguments(run)), begin_row(run)
    earlier = RunFolder(Path(begun["resumes"])) if begun.get("resumes") else None
    # An earlier one that was deleted meanwhile has told nothing but what this one was called with.
    there = earlier is not None and earlier.events.exists()
    params = {**_called(command, earlier), **_given(context)} if earlier is not None and there else context.params
    return {**params, "duration": begun.get("duration_s", params["duration"])}


def rest(ctx: click.Context, folder: Path, duration_s: float | None, loaded_s: float) -> float | None:
    """What is left of the time that `-t` gave the run. OptionError where nothing is; `-t` given now counts whole."""
    if duration_s is None or ctx.get_parameter_source("duration") is ParameterSource.COMMANDLINE:
        return duration_s
    if loaded_s > duration_s - _LEAST_S:
        raise OptionError(f"--resume {folder}: the {duration_s:g} s that -t gave it are over; another -t lets it go on")
    return duration_s - loaded_s


def point(folder: Path, profile: Profile, seed: int) -> Point:
    """Where it goes on."""
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.runner.resume import point as find

    return find(RunFolder(folder), profile, seed)
