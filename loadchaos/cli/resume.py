"""Options of `loadchaos run --resume RUN`: recorded and given now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from loadchaos.cli.load_options import load_option_names
from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.profile.profile import Profile
    from loadchaos.run.resume import ResumePoint

_CHANGE_THE_PLAN = {"overrides", "users", "endpoint", "goodput", *load_option_names()}
_MIN_REMAINING_S = 1.0
"""A run's time counts from the start of its load process, its load from that process's first row: both differ a little."""


def called_again(ctx: click.Context, folder: Path) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Profile, overrides and options of an interrupted run. Options given now replace its own. There are no overrides:
    the run's recorded profile contains them.
    """
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.run.resume import hidden

    run = RunFolder(folder)
    given = _given(ctx)
    if changing := sorted(_CHANGE_THE_PLAN & set(given)):
        names = " and ".join(next(p.opts[-1] for p in ctx.command.params if p.name == name) for name in changing)
        raise OptionError(f"--resume continues the same plan: leave out {names}, which would change it")
    params = {**_recorded_options(ctx.command, run), **given}
    for param in ctx.command.params:
        if hidden(params.get(str(param.name))):
            raise OptionError(f"--resume {folder}: {param.opts[0]} had a secret, which is not recorded; give it again")
    profile = given.get("profile") or str(run.profile)
    if "profile" not in given and hidden(run.profile.read_text("utf-8")):
        raise OptionError(f"--resume {folder}: the profile had a secret, which is not recorded; give the profile again")
    options = {k: v for k, v in params.items() if k != "profile"}
    unchanged: dict[str, Any] = {**dict.fromkeys(_CHANGE_THE_PLAN, None), "goodput": {}, "overrides": ()}
    given_now = {name: bool(given.get(name)) for name in ("dry_run", "print_profile")}
    return profile, (), {**options, **unchanged, **given_now}


def _given(ctx: click.Context) -> dict[str, Any]:
    return {k: v for k, v in ctx.params.items() if ctx.get_parameter_source(k) is ParameterSource.COMMANDLINE}


def _recorded_options(command: click.Command, run: RunFolder) -> dict[str, Any]:
    """Options of a run from its ledger, with those of the run that it resumed."""
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.run.resume import arguments, begin_row

    context, begin = command.make_context("run", arguments(run)), begin_row(run)
    earlier = RunFolder(Path(begin["resumes"])) if begin.get("resumes") else None
    # If the earlier run was deleted, only this run's own options are known.
    exists = earlier is not None and earlier.events.exists()
    params = {**_recorded_options(command, earlier), **_given(context)} if earlier and exists else context.params
    return {**params, "duration": begin.get("duration_s", params["duration"])}


def remaining_duration(ctx: click.Context, folder: Path, duration_s: float | None, loaded_s: float) -> float | None:
    """Seconds left of the run's -t; one that is given now counts as a whole. Raises OptionError for none."""
    if duration_s is None or ctx.get_parameter_source("duration") is ParameterSource.COMMANDLINE:
        return duration_s
    if loaded_s > duration_s - _MIN_REMAINING_S:
        raise OptionError(
            f"--resume {folder}: the run used all of its {duration_s:g} s (-t); give another -t to continue"
        )
    return duration_s - loaded_s


def resume_point(folder: Path, profile: Profile, seed: int) -> ResumePoint:
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.run.resume import point

    return point(RunFolder(folder), profile, seed)
