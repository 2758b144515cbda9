"""The shape of a dialect: everything that differs from server to server, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadchaos.core.model import Outcome


@dataclass(frozen=True)
class AdminOperation:
    """One operation on the server's admin surface. `gate` says in words what turns it on (shown when it is missing).

    `params` are the query parameters with their defaults, `body` a JSON body or None. `effects` are ids of failures
    and names of outcomes that this operation may cause by itself: what bites inside its window and is listed here is
    our own doing. `effects_when` adds effects for a parameter, keyed "mode=abort". `undo` names the operation that
    takes this one back. `since` is the first server version that has it, `limit_s` how long an answer may take,
    `get_acts` says that a GET of the path does it too (so nobody may look for the path with one). `allowed` are the
    only values that a parameter may be given.
    """

    name: str
    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    gate: str = ""
    effects: Sequence[str] = ()
    undo: str | None = None
    destructive: bool = True
    body: Mapping[str, Any] | None = None
    effects_when: Mapping[str, Sequence[str]] = field(default_factory=dict)
    since: str = ""
    limit_s: float = 30.0
    get_acts: bool = False
    allowed: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def effects_with(self, params: Mapping[str, str]) -> list[str]:
        """The effects of a call with these parameters over the defaults, each once."""
        found = list(self.effects)
        for name, value in {**self.params, **params}.items():
            found += self.effects_when.get(f"{name}={value}", ())
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class MetricName:
    """One of our metric names and the server's names for it, newest first; `part` is "" or "_count" or "_sum".

    With `label` the value is that label of an info metric (`cache_config_info{num_gpu_blocks="21"} 1`).
    """

    ours: str
    theirs: Sequence[str]
    part: str = ""
    label: str = ""


@dataclass(frozen=True)
class Era:
    """Versions below `before` differ in `changes` (fields of Dialect); of several eras the oldest that fits wins."""

    before: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Dialect:
    """All that is particular to one kind of server. Regexes are searched in texts as the server sends them.

    `validation` are texts of a refusal that is the client's fault (outcome `rejected`, statuses 4xx only); `shed` are
    texts of admission control; `engine_dead` are texts by which the server says its engine is gone. `health_ok` are the
    statuses of /health that mean healthy; `health_knows_death` is False where /health is a constant.
    `exact_output` are body fields that make an answer exactly N tokens long: field -> "true" or "tokens" (put N).
    `context_fits` is False where a prompt within the context may still be too long, for the KV cache holds less.
    `metrics_refresh_s` is how old a gauge may be on a healthy server. `process_roles` maps a regex over a process's
    title and command line to its role in rows of kind `process`. `development_gate` says how to turn admin endpoints
    on; `development_path` is a POST endpoint of them, which answers a GET with 405 where it exists and 404 where not.
    """

    name: str
    title: str
    health_path: str = "/health"
    health_ok: Sequence[int] = (200,)
    health_knows_death: bool = True
    chat_path: str = "/v1/chat/completions"
    metrics_path: str | None = "/metrics"
    sends_done: bool = True
    validation: Sequence[re.Pattern[str]] = ()
    shed: Sequence[re.Pattern[str]] = ()
    engine_dead: Sequence[re.Pattern[str]] = ()
    metrics: Sequence[MetricName] = ()
    admin: Mapping[str, AdminOperation] = field(default_factory=dict)
    development_gate: str = ""
    over_length: Sequence[Outcome] = ("rejected",)
    context_fits: bool = True
    exact_output: Mapping[str, str] = field(default_factory=dict)
    development_path: str | None = None
    metrics_refresh_s: float = 0.0
    process_roles: Sequence[tuple[re.Pattern[str], str]] = ()
    eras: Sequence[Era] = ()

    def at(self, version: str | None) -> Dialect:
        """This dialect as that version speaks it; None or an unreadable version is the newest."""
        key = version_key(version)
        if key is None:
            return self
        for era in sorted(self.eras, key=lambda e: version_key(e.before) or ()):
            before = version_key(era.before)
            if before is not None and key < before:
                return replace(self, **era.changes)
        return self


def version_key(version: str | None) -> tuple[int, ...] | None:
    """`"0.22.1.post2+cpu"` as (0, 22, 1), for comparing; None where no number leads."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(n) for n in match[1].split(".")) if match else None


def patterns(*texts: str) -> tuple[re.Pattern[str], ...]:
    """Compile a table of regexes."""
    return tuple(re.compile(text) for text in texts)
