"""Options of a command that `--resume` continues: the recorded ones, and those that are typed now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from loadchaos.cli.common import Given, allow_foreign
from loadchaos.cli.load_options import load_option_names
from loadchaos.cli.profiles import acts_of, profile_of
from loadchaos.core import own_folder
from loadchaos.core.errors import OptionError
from loadchaos.core.redact import REDACTED, Redactor

if TYPE_CHECKING:
    from loadchaos.core.ledger.folder import RunFolder

_CHANGE_THE_PLAN = {"overrides", "users", "endpoint", "goodput", "expect", *load_option_names()}
_MIN_REMAINING_S = 1.0
"""A run's time counts from the start of its load process, its load from that process's first row: both differ a little."""


def recorded(name: str, value: object) -> object:
    """Value of an option as it is recorded: a secret in it is redacted. A header keeps the name of a variable alone."""
    if name == "launch" and isinstance(value, str):
        from loadchaos.campaigns.replay.servers import from_launch, redacted_command

        return redacted_command(from_launch(value))
    if name == "headers" and isinstance(value, tuple):
        return tuple(
            text if text.partition("=")[2].startswith("env:") else f"{text.partition('=')[0]}={REDACTED}"
            for text in value
        )
    if isinstance(value, tuple):
        return tuple(recorded("", part) for part in value)
    return Redactor().text(value) if isinstance(value, str) else value


def hidden(value: object) -> bool:
    """True when a part of an option's value was a secret and is not recorded."""
    return any(REDACTED in str(text) for text in (value if isinstance(value, tuple) else (value,)))


def restored(
    ctx: click.Context, before: Given, fixed: Collection[str], what: str, folder: Path, more: Sequence[str] = ()
) -> Given:
    """Complete the options of a `what` that is continued from those recorded `before`. What is typed now replaces them,
    but one of `fixed` may only be typed as it was. Raises OptionError for another one, for a secret that is missing, and
    where `folder` was made by somebody else and nobody allows what it asks for: these options and `more`.
    """
    by_variable = [
        name
        for name, value in before.items()
        if hidden(value) and ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    ]
    typed = {**_typed(ctx), **{name: ctx.params[name] for name in by_variable}}
    option = {p.name: f"a {p.name}" if isinstance(p, click.Argument) else p.opts[-1] for p in ctx.command.params}
    if changed := sorted(name for name in typed if name in fixed and recorded(name, typed[name]) != before.get(name)):
        names = " and ".join(option[name] for name in changed)
        raise OptionError(f"--resume continues a {what} with its own options: leave out {names}, or start a new {what}")
    for name, value in before.items():
        if hidden(value) and name not in typed:
            raise OptionError(f"--resume: {option[name]} had a secret, which is not recorded; give it again")
    asks = [f"{option[n]}: {v}" for n, v in before.items() if v and n not in typed and v != ctx.params.get(n)]
    allow_foreign(folder, [*asks, *more], ctx.params, f"start a new {what}")
    return {**ctx.params, **before, **typed}


def _typed(ctx: click.Context) -> Given:
    return {k: v for k, v in ctx.params.items() if ctx.get_parameter_source(k) is ParameterSource.COMMANDLINE}


def called_again(ctx: click.Context, folder: Path) -> Given:
    """Profile and options of an interrupted run. There are no overrides: the run's recorded profile contains them."""
    from loadchaos.core.ledger.folder import RunFolder

    run = RunFolder(folder)
    typed = _typed(ctx)
    profile = typed.get("profile") or str(run.profile)
    own_folder.refuse_links(folder)
    acts = [] if "profile" in typed or own_folder.is_own(folder) else acts_of(profile_of(profile, ()), foreign=True)
    options = restored(ctx, _recorded_options(ctx.command, run), _CHANGE_THE_PLAN, "run", folder, acts)
    if "profile" not in typed and hidden(run.profile.read_text("utf-8")):
        raise OptionError(f"--resume {folder}: the profile had a secret, which is not recorded; give the profile again")
    unchanged: Given = {**dict.fromkeys(_CHANGE_THE_PLAN), "goodput": {}, "overrides": (), "expect": ()}
    now = {name: bool(typed.get(name)) for name in ("dry_run", "print_profile")}
    return {**options, **unchanged, **now, "profile": profile}


def _recorded_options(command: click.Command, run: RunFolder) -> Given:
    """Options of a run from its ledger, with those of the run that it resumed."""
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.run.resume import arguments, begin_row

    context, begin = command.make_context("run", arguments(run)), begin_row(run)
    # A folder of somebody else names no other one.
    resumes = begin.get("resumes") if own_folder.is_own(run.path) else None
    earlier = RunFolder(Path(resumes)) if resumes else None
    # If the earlier run was deleted, only this run's own options are known.
    exists = earlier is not None and earlier.events.exists()
    params = {**_recorded_options(command, earlier), **_typed(context)} if earlier and exists else context.params
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
