import time
from collections.abc import Mapping
from typing import Any

import pytest

from loadchaos.chaos.base import ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.chaos.host import HOST_LOADS
from loadchaos.chaos.injector import ATTACKS
from loadchaos.chaos.signals import SIGNALS
from loadchaos.chaos.toxics import SLOW, TOXICS, Attribute, Chunking, ToxicType
from loadchaos.core.attack_names import ATTACK_KINDS, NETWORK_FAULTS, PROCESS_SIGNALS
from loadchaos.core.attack_names import HOST_LOADS as HOST_LOAD_NAMES
from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.model import SERVER_ROLES
from tests.chaos.conftest import injector
from tests.chaos.toxic_proxy import echoed, proxied, toxic_of
from tests.rows import EmittedRows as Rows


@pytest.mark.parametrize(
    ("names", "registry"),
    [(NETWORK_FAULTS, TOXICS), (PROCESS_SIGNALS, SIGNALS), (HOST_LOAD_NAMES, HOST_LOADS)],
    ids=["toxics", "signals", "host"],
)
def test_registry_has_the_names_of_a_profile(names: Any, registry: Mapping[str, Any]) -> None:
    assert list(registry) == list(names)


def test_signals_that_nothing_undoes_are_instant_in_a_profile() -> None:
    assert set(ATTACK_KINDS["process"].instant) == {name for name, kind in SIGNALS.items() if kind.undo_number is None}


def test_toxic_effects_excuse_no_server_error() -> None:
    assert all("http_error" not in kind.effects for kind in TOXICS.values())


def test_signals_declare_effects_for_every_role() -> None:
    assert all(set(kind.effects) == set(SERVER_ROLES) for kind in SIGNALS.values())


class Stutter(ToxicType):
    """A toxic that a contributor might add: pass data byte by byte."""

    attributes = (Attribute("pause", 20, "ms"),)
    effects = SLOW

    def chunk(self, chunking: Chunking) -> Chunking:
        return Chunking(1, self.values["pause"] / 1000, chunking.rate)


async def test_toxic_added_to_the_registry_works_in_our_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOXICS, "stutter", Stutter)
    async with proxied() as (proxy, connect):
        await proxy.add(toxic_of("stutter", pause="50"))
        begin = time.monotonic()
        assert await echoed(await connect(), b"hello") == b"hello"
        assert time.monotonic() - begin >= 0.2  # four pauses of 50 ms before the last byte


class Flag(Attack):
    name = "flag_red"
    effects = ("stalled",)

    def __init__(self) -> None:
        self.raised = False

    def row_fields(self, replica: AttackedReplica) -> AttackDetail:
        return {"order": "red"}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        self.raised = True
        return ActResult(ok=True, text="raised")

    async def undo(self, replica: AttackedReplica) -> ActResult:
        self.raised = False
        return ActResult(ok=True, text="lowered")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        return ActResult(ok=True)


async def test_attack_added_to_the_registry_is_run_and_undone(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = Flag()

    def make(spec: Any, params: Mapping[str, Any], context: AttackContext) -> Flag:
        assert (spec, params) == ("red", {"size": 2})
        return flag

    monkeypatch.setitem(ATTACKS, "flag", make)

    attacks = injector([{"flag": "red", "params": {"size": 2}, "for_s": 60.0}], AttackedReplica("a", ""), rows.append)
    await attacks.start()
    await rows.until(lambda: flag.raised)
    assert await attacks.stop() == []
    assert not flag.raised
    assert [(r["attack"], r["kind"], r["what"], r["order"]) for r in rows] == [
        ("flag_red", "flag", what, "red") for what in ("begin", "end", "undo")
    ]
    assert rows[0]["effects"] == ["stalled"]
