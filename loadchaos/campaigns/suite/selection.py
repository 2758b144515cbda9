"""Selection of the profiles of a suite. Each profile that is left out has its reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from loadchaos.chaos import authorization
from loadchaos.core.errors import OptionError
from loadchaos.profile.profile import Profile
from loadchaos.run.probe import ProfileFit

_FIRST = "smoke"


@dataclass(frozen=True)
class Selected:
    """One profile of a suite, with the reasons why it is left out; none if it runs."""

    profile: Profile
    reasons: Sequence[str] = ()


@dataclass(frozen=True)
class SuiteChoice:
    """`only` empty: all but `skip`. `authorized` as in `--authorize`; None: the server is our own."""

    only: Collection[str] = ()
    skip: Collection[str] = ()
    authorized: Sequence[str] | None = ()


def select(
    profiles: Mapping[str, Profile], fits: Sequence[ProfileFit], choice: SuiteChoice, url: str
) -> list[Selected]:
    """Decide for each profile that was asked for if it runs.

    Profiles that can harm the server come last, so that its death costs no other verdict. `smoke` is the first.

    Raises:
        OptionError: a name is no profile.
    """
    for name in (*choice.only, *choice.skip):
        if name not in profiles:
            raise OptionError(f"no profile {name!r}: there are {', '.join(profiles)}")
    by_name = {fit.name: fit for fit in fits}
    asked = {n: p for n, p in profiles.items() if n not in choice.skip and (not choice.only or n in choice.only)}
    selected = [_selected(name, profile, by_name[profile.name], choice, url) for name, profile in asked.items()]
    return sorted(selected, key=lambda s: (bool(s.profile.dangers()), s.profile.name != _FIRST, s.profile.name))


def _selected(name: str, profile: Profile, fit: ProfileFit, choice: SuiteChoice, url: str) -> Selected:
    if profile.schedule is not None and name not in choice.only:
        return Selected(profile, ["it runs on a schedule: loadchaos soak"])
    reasons = list(fit.lacks)
    dangers = profile.dangers()
    if choice.authorized is not None and authorization.is_missing(url, dangers, choice.authorized):
        allowed = f"allow it with --authorize {authorization.address(url)}"
        reasons.append(f"it can harm the server ({'; '.join(dangers)}): {allowed}")
    return Selected(profile, reasons)
