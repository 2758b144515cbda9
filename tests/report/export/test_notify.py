import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.cli.run import redacted_argv
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.typed_json import from_json
from loadchaos.report.export import notify
from tests.http_server import Asked, answering

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # apprise's own, where it is installed


@dataclass
class Hook:
    """Webhook that stores its requests and answers with `status`."""

    url: str = ""
    status: int = 200
    got: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()

    def reply(asked: Asked) -> tuple[int, object]:
        found.got.append(asked.json())
        return found.status, b""

    with answering(reply) as found.url:
        yield found


def test_webhook_gets_the_verdict(hook: Hook, verdict: Verdict, tmp_path: Path) -> None:
    url = f"{hook.url}/x"
    assert notify.send(url, notify.message(verdict, tmp_path / "mtp_mm-1")) == ""
    (got,) = hook.got
    assert got["text"].startswith("loadchaos: FAIL mtp_mm: ")
    assert (got["verdict"], got["exit_code"], got["run"]) == ("fail", 1, "mtp_mm-1")
    assert {f["id"] for f in got["failures"]} == {"connection_reset", "encoder_cache_miss"}


def test_send_reports_an_error_without_the_address(hook: Hook, verdict: Verdict, tmp_path: Path) -> None:
    hook.status = 403
    message = notify.message(verdict, tmp_path)
    refused = notify.send(f"{hook.url}/secret", message)
    assert "refused with 403" in refused
    assert "secret" not in refused
    for address in ("http://127.0.0.1:1/secret", "http://[/secret", "nobody://secret"):
        trouble = notify.send(address, message)
        assert "not sent" in trouble
        assert "secret" not in trouble


def test_address_in_a_variable_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://hooks.example/T1")
    assert notify.address("env:HOOK") == "https://hooks.example/T1"
    with pytest.raises(OptionError, match="not set"):
        notify.address("env:NO_SUCH_VARIABLE")
    argv = ["loadchaos", "run", "p", "--notify=https://hooks.example/T1", "--notify", "env:HOOK"]
    assert redacted_argv(argv, ["https://hooks.example/T1", "env:HOOK"]) == (
        "loadchaos",
        "run",
        "p",
        "--notify=[redacted]",
        "--notify",
        "env:HOOK",
    )


def test_notifier_sends_an_incident_again_under_a_new_id(hook: Hook, tmp_path: Path) -> None:
    troubles: list[str] = []
    messenger = notify.IncidentNotifier([f"{hook.url}/x"], tmp_path / "mtp_mm-1", troubles.append)
    for name in ("engine_death_unexplained", "engine_death_unexplained", "encoder_cache_miss", "encoder_cache_miss"):
        messenger.feed(
            1,
            name,
            partial(from_json, IncidentRecord, {"n": 1, "id": name, "folder": f"001-{name}", "title": "It died"}),
        )
    messenger.close()
    assert [got["incident"]["id"] for got in hook.got] == ["engine_death_unexplained", "encoder_cache_miss"]
    assert hook.got[1]["text"] == (
        "loadchaos: INCIDENT encoder_cache_miss: It died (mtp_mm-1/incidents/001-encoder_cache_miss)"
    )
    assert troubles == []


def test_notifier_limits_incidents_and_repeated_errors(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_DRAIN_S", 60.0)  # the machine may be busy
    hook.status, troubles = 500, list[str]()
    messenger = notify.IncidentNotifier([f"{hook.url}/x"], tmp_path, troubles.append)
    for n in range(100):
        messenger.feed(n, "engine_death", partial(from_json, IncidentRecord, {"n": n, "id": "engine_death"}))
    messenger.close()
    assert len(hook.got) == notify.MOST_INCIDENTS
    assert len(troubles) == 1


def test_addresses_are_removed_from_the_environment() -> None:
    environment = notify.to_environment(["https://hooks.example/T1", "mailto://u:p@example.com"])
    assert notify.from_environment(environment) == ("https://hooks.example/T1", "mailto://u:p@example.com")
    assert environment == {}
    assert notify.to_environment([]) == {}
    assert notify.from_environment({notify.VARIABLE: "no json"}) == ()


def test_follower_notifies_of_a_death(hook: Hook, run_folder: RunFolder) -> None:
    secret = f"{hook.url}/a-secret-token"
    subprocess.run(
        [sys.executable, "-m", "loadchaos.run.follower", str(run_folder.path), "--no-live"],
        env={**os.environ, **notify.to_environment([secret])},
        check=True,
        capture_output=True,
        timeout=60,
    )
    deaths = [got for got in hook.got if got["incident"]["kind"] == "death"]
    assert deaths
    assert {got["event"] for got in hook.got} == {"incident"}
    kept = [p for p in run_folder.path.rglob("*") if p.is_file()]
    assert not [p for p in kept if b"a-secret-token" in p.read_bytes()]


def test_apprise_sends_a_message(
    hook: Hook, verdict: Verdict, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("apprise", reason="pip install apprise")
    monkeypatch.setenv("HOME", str(tmp_path))
    address = f"json://{hook.url.removeprefix('http://')}/a-secret-token"
    message = notify.message(verdict, tmp_path / "mtp_mm-1")
    assert notify.send(address, message) == ""
    (got,) = hook.got
    assert got["message"] == message["text"]
    hook.status = 403
    assert "refused" in notify.send(address, message)
    assert "secret" not in "".join(capfd.readouterr())
    assert not any(tmp_path.rglob("*")), "apprise keeps nothing on disk"
