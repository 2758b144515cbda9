"""Tells somebody elsewhere how a run ended: a webhook gets JSON, other addresses go through apprise where it is installed.

A notification that fails is said and costs nothing else: the verdict is the run's, not the messenger's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadchaos.errors import OptionError
from loadchaos.tell.phrases import one_line, target_in_words
from loadchaos.tell.words import clean

_LIMIT_S = 10.0


def address(given: str) -> str:
    """The address itself where `env:VAR` names it. OptionError where the variable is not set."""
    if not given.startswith("env:"):
        return given
    value = os.environ.get(given.removeprefix("env:"), "")
    if not value:
        raise OptionError(f"--notify {given}: the variable is not set")
    return value


def message(verdict: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a webhook gets: `text` (which Slack, Mattermost and their like show), and the verdict's main facts."""
    word = str(verdict.get("verdict") or "unknown").upper()
    profile = clean(verdict.get("profile") or "?", 80)
    failures = verdict.get("failures") or []
    return {
        "text": f"loadchaos: {word} {profile}: {one_line(verdict)} (on {target_in_words(verdict)})",
        "verdict": verdict.get("verdict"), "profile": profile, "exit_code": verdict.get("exit_code"),
        "run": folder.name, "started": verdict.get("started"), "ended": verdict.get("ended"),
        "failures": [{k: f.get(k) for k in ("id", "severity", "count", "incident")} for f in failures[:50]],
    }  # fmt: skip


def send(to: str, told: Mapping[str, Any]) -> str:
    """Send it; empty when it was taken, else why not, without the address: it may be a secret."""
    if not to.startswith(("http://", "https://")):
        return _apprise(to, told)
    import httpx

    try:
        answer = httpx.post(to, json=dict(told), timeout=_LIMIT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        return f"the notification was not sent: {type(e).__name__}"
    return "" if answer.is_success else f"the notification was refused: {answer.status_code}"


def _apprise(to: str, told: Mapping[str, Any]) -> str:
    try:
        import apprise  # type: ignore[import-not-found, unused-ignore]  # optional: the extra `notify`
    except ImportError:
        return "the notification was not sent: an address that is no http URL needs `pip install apprise`"
    service = apprise.Apprise()
    if not service.add(to):
        return "the notification was not sent: apprise does not know such an address"
    return "" if service.notify(title="loadchaos", body=str(told["text"])) else "the notification was not taken"
