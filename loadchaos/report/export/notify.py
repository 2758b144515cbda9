"""Send notifications: JSON to an http URL, else through apprise. The webhook is ours because apprise's `json://` sends
a title and a text only: a webhook here gets the facts as JSON, and needs no extra package. A failed notification is
reported and does not change the verdict. An address is often a secret (its URL is enough to write to a webhook), so it
is never recorded and never printed.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

import orjson

from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.errors import OptionError
from loadchaos.core.foreign_json import json_value
from loadchaos.core.plugins import PluginError, PluginTable
from loadchaos.core.typed_json import to_json
from loadchaos.report.formatting import clean
from loadchaos.report.phrases import one_line, target_text

VARIABLE = "LOADCHAOS_NOTIFY"
MOST_INCIDENTS = 20
"""Incidents of one run that are sent one by one; verdict.json has them all."""
_LIMIT_S = 10.0
_DRAIN_S = 5.0


def address(given: str) -> str:
    """Resolve `env:VAR` to the address in that variable. Raises OptionError where it is not set."""
    if not given.startswith("env:"):
        return given
    value = os.environ.get(given.removeprefix("env:"), "")
    if not value:
        raise OptionError(f"--notify {given}: the variable is not set: export it, or give the address itself")
    return value


def message(verdict: Verdict, folder: Path) -> dict[str, object]:
    profile = clean(verdict.profile or "?", 80)
    return {
        "text": f"loadchaos: {verdict.verdict.upper()} {profile}: {one_line(verdict)} (target: {target_text(verdict)})",
        "event": "verdict",
        "verdict": verdict.verdict,
        "profile": profile,
        "exit_code": verdict.exit_code,
        "run": folder.name,
        "started": verdict.started,
        "ended": verdict.ended,
        "failures": [
            {"id": f.id, "severity": f.severity, "count": f.count, "incident": f.incident}
            for f in verdict.failures[:50]
        ],
    }


def incident_message(incident: IncidentRecord, folder: Path) -> dict[str, object]:
    where = f"{folder.name}/incidents/{incident.folder}"
    whole = to_json(incident)
    about = {k: whole[k] for k in ("n", "id", "kind", "severity", "replica", "attribution", "known", "folder")}
    about |= {"title": clean(incident.title, 600), "remedy": clean(incident.remedy, 600)}
    text = f"loadchaos: INCIDENT {incident.id}: {about['title']} ({where})"
    return {"text": text, "event": "incident", "run": folder.name, "incident": about}


def send(to: str, content: Mapping[str, object]) -> str:
    """Send a message. Returns "", else the reason and the next step without the address, which may be a secret."""
    scheme = to.partition("://")[0]
    try:
        return NOTIFIERS.get(scheme, _apprise)(to, content)
    except PluginError as e:
        return f"the notification was not sent: {e}"
    except Exception as e:  # noqa: BLE001 - of a plugin; its text may hold the address
        return f"the notification was not sent: the notifier {scheme} of a plugin failed ({type(e).__name__})"


def _webhook(to: str, content: Mapping[str, object]) -> str:
    import httpx

    try:
        answer = httpx.post(to, json=dict(content), timeout=_LIMIT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        return f"the notification was not sent ({type(e).__name__}): can the address of --notify be reached from here?"
    if answer.is_success:
        return ""
    return f"the notification was refused with {answer.status_code}: is the address of --notify still valid?"


Notifier = Callable[[str, Mapping[str, object]], str]
"""Sends a message to an address, as `send` does."""
NOTIFIERS = PluginTable[Notifier]("notifiers", Callable, {"http": _webhook, "https": _webhook})
"""Notifier by scheme of the address; apprise has the others."""


def _apprise(to: str, content: Mapping[str, object]) -> str:
    try:
        import apprise  # type: ignore[import-not-found, unused-ignore]  # optional: the extra `notify`
    except ImportError:
        return "the notification was not sent: an address other than an http URL needs `pip install apprise`"
    log = logging.getLogger("apprise")  # its messages quote addresses, and Python prints a record that has no handler
    log.addHandler(logging.NullHandler())
    log.propagate = False
    service = apprise.Apprise()
    if not service.add(to):
        return "the notification was not sent: apprise does not support this address; see the list on appriseit.com"
    if service.notify(title="loadchaos", body=str(content["text"])):
        return ""
    return "the notification was refused: can the service of --notify be reached, and is its address still valid?"


# -- during the run --------------------------------------------------------------------------------------------


def to_environment(addresses: Sequence[str]) -> dict[str, str]:
    """Environment that passes the addresses to the follower. A command line could be read by all users."""
    return {VARIABLE: orjson.dumps(list(addresses)).decode()} if addresses else {}


def from_environment(environment: MutableMapping[str, str]) -> tuple[str, ...]:
    """Read the addresses and remove them from the environment."""
    found = json_value(environment.pop(VARIABLE, "[]"))
    return tuple(map(str, found)) if isinstance(found, list) else ()


class IncidentNotifier:
    """Sends incidents in its own thread: a slow service delays nothing."""

    def __init__(self, addresses: Sequence[str], folder: Path, report: Callable[[str], object]) -> None:
        self._addresses, self._folder, self._report = addresses, folder, report
        self._sent: dict[int, str] = {}
        self._reported: set[str] = set()
        self._waiting: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, daemon=True)
        self._thread.start()

    def feed(self, n: int, name: str, incident: Callable[[], IncidentRecord]) -> None:
        """Send incident `n` if it is new or its id changed since it was sent."""
        if self._sent.get(n) == name or (n not in self._sent and len(self._sent) >= MOST_INCIDENTS):
            return
        self._sent[n] = name
        self._waiting.put(incident_message(incident(), self._folder))

    def close(self) -> None:
        """Wait up to 5 s for messages in progress."""
        self._waiting.put(None)
        self._thread.join(_DRAIN_S)

    def _deliver(self) -> None:
        while (content := self._waiting.get()) is not None:
            for to in self._addresses:
                error = send(to, content)
                if error and error not in self._reported:
                    self._reported.add(error)
                    self._report(error)
