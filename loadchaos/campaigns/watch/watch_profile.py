"""Profile of a watch. It sends nothing: its traffic and phase only stand where a profile must have some."""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.core.errors import OptionError
from loadchaos.core.model import DEFAULT_EXPECT
from loadchaos.load import registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.run.others_load import OthersOptions
from loadchaos.server.discovery.client import parse_target

PROXY_MODULE = "loadchaos.campaigns.watch.proxy_load"
"""Module of the process with the recording proxy (it imports much: nothing here imports it)."""
_UNSEEN_EXPECT = ("engine_deaths == 0", "hangs == 0", "outages == 0")


def watch_profile(
    targets: Sequence[str],
    logs: Sequence[str],
    others: OthersOptions,
    expect: Sequence[str],
    attacks: Profile | None,
    overrides: Sequence[str] = (),
) -> Profile:
    """Make the profile. Several targets are replicas, each with the log of its place. Raises OptionError and
    ProfileError.
    """
    default: Sequence[str] = DEFAULT_EXPECT
    if others.watched == "traffic":
        default = (*_UNSEEN_EXPECT, *(("failures == 0",) if logs else ()))
    data: dict[str, object] = {
        "name": "watch",
        "about": "watches the load of others",
        "target": {"on_death": "stop", "replicas": _replicas(targets, logs)},
        "traffic": [{"name": "watched", "payload": {"text": {"tokens": 1}}}],
        "load": [{"users": 1, "for": "1h"}],
        "expect": [*default, *expect],
    }
    if attacks is not None:
        given = attacks.to_json()
        data |= {key: given[key] for key in ("attacks", "accept", "watch") if key in given}
        if others.watched != "command" and (faults := [a.operation for a in attacks.attacks if a.network]):
            raise OptionError(
                f"the attack {faults[0]} is on the path to the server, and the load of others does not pass here: give "
                "their command after --, or a profile without network faults"
            )
    return from_mapping(data, registry.traffic_registry(), overrides)


def _replicas(targets: Sequence[str], logs: Sequence[str]) -> list[dict[str, str]]:
    if len(targets) == 1:
        return []
    if logs and len(logs) != len(targets):
        raise OptionError(
            f"{len(targets)} targets and {len(logs)} logs: give each target its --server-log, in their order"
        )
    found = [{"name": f"server-{n}", "url": parse_target(url)} for n, url in enumerate(targets, 1)]
    return [{**replica, "log": log} for replica, log in zip(found, logs, strict=True)] if logs else found
