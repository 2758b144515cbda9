import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from loadchaos.analysis.judge import Judge
from loadchaos.chaos.injector import AttackInjector
from loadchaos.chaos.manual import Offer
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.writer import Writer
from loadchaos.run.server_under_test import TargetSpec
from loadchaos.run.web_commands import WebCommands

Row = dict[str, Any]


class FakeAttacks:
    addresses: Sequence[str] = ()

    def __init__(self) -> None:
        self.fired: list[str] = []

    def offers(self) -> list[Offer]:
        return [Offer("admin", name, name, f"POST /{name}") for name in ("sleep", "nonsense")]

    def fire(self, kind: str, name: str, params: Row) -> None:
        if name == "nonsense":
            raise OptionError("there is no such operation")
        self.fired.append(f"{kind} {name}")


class Bench:
    def __init__(self, home: Path, kind: str = "embedded", authorized: tuple[str, ...] = (), **start: Any) -> None:
        self.folder = RunFolder(home)
        self.record = EventRecorder(self.folder, lambda row: None)
        url = "http://10.1.2.3:8000" if kind == "external" else None
        place = TargetSpec(kind, url, None, (), {}, external_urls=() if url is None else (url, "http://10.1.2.4:8000"))
        self.commands = WebCommands(self.record, place, authorized, start)
        self.writer = Writer(self.folder.commands, "web")
        self.attacks = FakeAttacks()

    def load_begins(self) -> None:
        self.commands.load_begins(cast("AttackInjector", self.attacks))

    def press(self, what: str, **more: Any) -> None:
        self.writer.write({"row": "command", "at_ns": time.monotonic_ns(), "what": what, "n": 1, **more})
        self.commands.poll()

    def rows(self, kind: str) -> list[Row]:
        return [{**row} for row in Tail(self.folder.events).rows() if row["row"] == kind]

    def control(self) -> list[str]:
        return [row["what"] for row in Tail(self.folder.control).rows() if row["row"] == "control"]


@pytest.mark.parametrize(
    ("kind", "authorized"),
    [("embedded", ()), ("external", ("10.1.2.3:8000", "10.1.2.4:8000"))],
    ids=["our own server", "all replicas are authorised"],
)
def test_attack_is_run_on_our_own_or_an_authorised_server(
    tmp_path: Path, kind: str, authorized: tuple[str, ...]
) -> None:
    bench = Bench(tmp_path, kind, authorized)
    bench.load_begins()
    bench.press("attack", kind="admin", name="sleep", params={})
    assert bench.attacks.fired == ["admin sleep"]
    assert [(r["ok"], r["text"]) for r in bench.rows("command")] == [(True, "sleep fired")]
    assert bench.rows("offers")[0]["refused"] is None


@pytest.mark.parametrize(
    ("authorized", "missing"),
    [((), "10.1.2.3:8000"), (("10.1.2.3:8000",), "10.1.2.4:8000")],
    ids=["no replica is authorised", "one of two replicas is authorised"],
)
def test_attack_is_refused_with_a_hint_unless_all_replicas_are_authorised(
    tmp_path: Path, authorized: tuple[str, ...], missing: str
) -> None:
    bench = Bench(tmp_path, "external", authorized)
    bench.load_begins()
    bench.press("attack", kind="admin", name="sleep", params={})
    assert bench.attacks.fired == []
    (row,) = bench.rows("command")
    assert not row["ok"]
    assert f"--authorize {missing}" in row["text"]
    assert f"--authorize {missing}" in bench.rows("offers")[0]["refused"]


@pytest.mark.parametrize(("kind", "name"), [("process", "sleep"), ("admin", "update_weights"), ("host", "cpu")])
def test_attack_that_no_button_offers_is_not_run(tmp_path: Path, kind: str, name: str) -> None:
    bench = Bench(tmp_path)
    bench.load_begins()
    bench.press("attack", kind=kind, name=name, params={})
    assert bench.attacks.fired == []
    assert [(r["ok"], r["text"]) for r in bench.rows("command")] == [(False, f"{kind} {name} was not offered")]


def test_attack_that_the_dialect_lacks_is_answered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.load_begins()
    bench.press("attack", kind="admin", name="nonsense", params="no mapping")
    assert [(r["ok"], r["text"]) for r in bench.rows("command")] == [(False, "there is no such operation")]


def test_commands_before_the_load_ignore_edits_but_not_stop(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.press("attack", kind="admin", name="sleep")
    assert not bench.rows("command")[0]["ok"]
    assert not bench.commands.stop_asked
    bench.press("stop")
    assert bench.commands.stop_asked


@pytest.mark.parametrize("edited", [True, False])
def test_start_with_edited_users_switches_to_manual_users_at_once(tmp_path: Path, edited: bool) -> None:
    bench = Bench(tmp_path, what="start", users=3, rate=1.0, planned=10, edited=edited)
    bench.load_begins()
    assert bench.control() == (["by_hand"] if edited else [])
    assert [r["text"] for r in bench.rows("command")] == (["3 users at 1 a second (planned: 10)"] if edited else [])


def test_edit_switches_to_manual_users_once_and_reports_each(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.load_begins()
    bench.press("users", users=20, rate=5, planned=10)
    bench.press("users", users=0, rate=5, planned=10)
    assert bench.control() == ["by_hand"]
    assert [r["text"] for r in bench.rows("command")] == [
        "20 users at 5 a second (planned: 10)",
        "0 users at 5 a second (planned: 10)",
    ]


def test_verdict_lists_what_was_done_in_the_web_ui() -> None:
    judge = Judge()
    s = 1_000_000_000
    for row in (
        {"row": "run", "at_ns": s, "what": "begin", "profile": "small"},
        {"row": "run", "at_ns": 2 * s, "what": "load_begin"},
        {"row": "command", "at_ns": 5 * s, "what": "users", "n": 1, "ok": True, "text": "4 users"},
        {"row": "command", "at_ns": 6 * s, "what": "attack", "n": 2, "ok": False, "text": "refused"},
        {"row": "run", "at_ns": 9 * s, "what": "end"},
    ):
        judge.fold(row)
    result = judge.verdict().to_json()
    assert result["by_hand"] == ["3.0 s: 4 users"]
    assert result["notes"] == ["changed by hand during the run: 3.0 s: 4 users"]


def test_verdict_of_an_untouched_run_lists_no_web_commands() -> None:
    judge = Judge()
    judge.fold({"row": "run", "at_ns": 1, "what": "begin", "profile": "small"})
    assert "by_hand" not in judge.verdict().to_json()
