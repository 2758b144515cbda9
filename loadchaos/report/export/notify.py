"""Tells somebody elsewhere what a run found: a webhook gets JSON, other addresses go through apprise where it is installed.

A notification that fails is said and costs nothing else: the verdict is the run's, not the messenger's. An address is
often a secret (whoever has a webhook's URL may write to it): it is never recorded and never said.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import OptionError
from loadchaos.report.formatting import clean
from loadchaos.report.phrases import one_line, target_text

VARIABLE = "LOADCHAOS_NOTIFY"
MOST_INCIDENTS = 20
"""Incidents of one run that are told one by one; the verdict has them all."""
_LIMIT_S = 10.0
_DRAIN_S = 5.0


def address(given: str) -> str:
    """The address itself where `env:VAR` names it. OptionError where the variable is not set."""
    if not given.startswith("env:"):
        return given
    value = os.environ.get(given.removeprefix("env:"), "")
    if not value:
        raise OptionError(f"--notify {given}: the variable is not set: export it, or give the address itself")
    return value


def message(verdict: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a webhook gets at the end: `text` (which Slack, Mattermost and their like show), and the main facts."""
    word = str(verdict.get("verdict") or "unknown").upper()
    profile = clean(verdict.get("profile") or "?", 80)
    failures = verdict.get("failures") or []
    return {
        "text": f"loadchaos: {word} {profile}: {one_line(verdict)} (on {target_text(verdict)})",
        "event": "verdict",
        "verdict": verdict.get("verdict"),
        "profile": profile,
        "exit_code": verdict.get("exit_code"),
        "run": folder.name,
        "started": verdict.get("started"),
        "ended": verdict.get("ended"),
        "failures": [{k: f.get(k) for k in ("id", "severity", "count", "incident")} for f in failures[:50]],
    }


def incident_message(incident: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a webhook gets when an incident (shape: incident.json) opens, and again when its cause names it anew."""
    where = f"{folder.name}/incidents/{incident.get('folder')}"
    about = {k: incident.get(k) for k in ("n", "id", "kind", "severity", "replica", "attribution", "known", "folder")}
    about |= {k: clean(incident.get(k) or "", 600) for k in ("title", "remedy")}
    text = f"loadchaos: INCIDENT {incident.get('id')}: {about['title']} ({where})"
    return {"text": text, "event": "incident", "run": folder.name, "incident": about}


def send(to: str, told: Mapping[str, Any]) -> str:
    """Send it; empty when it was taken, else why not and what to do, without the address: it may be a secret."""
    if not to.startswith(("http://", "https://")):
        return _apprise(to, told)
    import httpx

    try:
        answer = httpx.post(to, json=dict(told), timeout=_LIMIT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        return f"the notification was not sent ({type(e).__name__}): can the address of --notify be reached from here?"
    if answer.is_success:
        return ""
    return f"the notification was refused with {answer.status_code}: is the address of --notify still valid?"


def _apprise(to: str, told: Mapping[str, Any]) -> str:
    try:
        import apprise  # type: ignore[import-not-found, unused-ignore]  # optional: the extra `notify`
    except ImportError:
        return "the notification was not sent: an address that is no http URL needs `pip install apprise`"
    log = logging.getLogger("apprise")  # its complaints quote addresses, and Python prints what nobody listens to
    log.addHandler(logging.NullHandler())
    log.propagate = False
    service = apprise.Apprise()
    if not service.add(to):
        return "the notification was not sent: apprise knows no such address; its forms are on appriseit.com"
    if service.notify(title="loadchaos", body=str(told["text"])):
        return ""
    return "the notification was not taken: can the service of --notify be reached, and is its address still valid?"


# -- while the run goes --------------------------------------------------------------------------------------------


def handing_over(addresses: Sequence[str]) -> dict[str, str]:
    """The environment variable that brings the addresses to the follower: a command line is seen by all users."""
    return {VARIABLE: orjson.dumps(list(addresses)).decode()} if addresses else {}


def handed_over(environment: MutableMapping[str, str]) -> tuple[str, ...]:
    """The addresses `run` gave its follower, taken out of the environment, so that no child gets them."""
    try:
        found = orjson.loads(environment.pop(VARIABLE, "[]"))
    except orjson.JSONDecodeError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


class Messenger:
    """Tells of incidents from a thread of its own, so that a slow service delays no one who reads the ledger."""

    def __init__(self, addresses: Sequence[str], folder: Path, trouble: Callable[[str], object]) -> None:
        self._addresses, self._folder, self._trouble = addresses, folder, trouble
        self._told: dict[int, str] = {}
        self._complained: set[str] = set()
        self._waiting: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, daemon=True)
        self._thread.start()

    def see(self, n: int, name: str, incident: Callable[[], Mapping[str, Any]]) -> None:
        """Tell of incident `n` where it is new, or has another name than when it was told."""
        if self._told.get(n) == name or (n not in self._told and len(self._told) >= MOST_INCIDENTS):
            return
        self._told[n] = name
        self._waiting.put(incident_message(incident(), self._folder))

    def close(self) -> None:
        """Wait a little for what is under way."""
        self._waiting.put(None)
        self._thread.join(_DRAIN_S)

    def _deliver(self) -> None:
        while (told := self._waiting.get()) is not None:
            for to in self._addresses:
                trouble = send(to, told)
                if trouble and trouble not in self._complained:
                    self._complained.add(trouble)
                    self._trouble(trouble)
