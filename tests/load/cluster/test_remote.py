import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger import parquet
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.typed_json import from_json
from loadchaos.load.cluster import master as master_module
from loadchaos.load.cluster import messages, worker_link
from loadchaos.load.cluster.lost_workers import PhaseBegins, unsent_share
from loadchaos.load.worker import bundle
from loadchaos.load.worker.clock_sync import MasterClock
from loadchaos.load.worker.greenlets import sleep, spawn

TEXT = {"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 8}}
ROW = b'{"row":"heartbeat","at_ns":1}\n'


class Wire:
    """A fake of Locust's runner.

    Records what is sent, delivers what a test gives.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], str | None]] = []
        self.listeners: dict[str, Callable[..., None]] = {}

    def send_message(self, msg_type: str, data: Any = None, client_id: str | None = None) -> None:
        self.sent.append((msg_type, data or {}, client_id))

    def register_message(self, msg_type: str, listener: Callable[..., None], concurrent: bool = False) -> None:
        self.listeners[msg_type] = listener

    def deliver(self, kind: str, client: str = "w", **data: Any) -> tuple[str, dict[str, Any]]:
        """A message arrives; what is answered last."""
        self.listeners[kind](environment=None, msg=SimpleNamespace(data=data, node_id=client))
        return self.sent[-1][:2]

    def kinds(self) -> Counter[str]:
        return Counter(kind for kind, _, _ in self.sent)


def lay_out(folder: Path, load: list[dict[str, Any]], workers: int, traffic: dict[str, Any] = TEXT) -> None:
    plan = {
        "profile": {"name": "t", "traffic": [traffic], "load": load}, "seed": 1, "base_url": "http://127.0.0.1:1",
        "api_key_env": None, "headers": {}, "folder": str(folder), "workers": workers,
    }  # fmt: skip
    facts = {"base_url": "http://127.0.0.1:1", "admin_url": "http://127.0.0.1:1", "dialect": "vllm", "model": "m"}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "facts.json").write_text(json.dumps(facts))


class Master:
    def __init__(self, folder: Path, workers: int = 2, wait_s: float = 60.0) -> None:
        lay_out(folder, [{"rate": "10/s", "for": "10s"}], workers)
        self.folder, self.wire = folder, Wire()
        self.begun: list[int] = []
        self.on_end: list[LedgerError | None] = []
        self.coordinator = master_module.Coordinator(
            self.wire, folder, workers, wait_s, self.begun.append, self.on_end.append
        )

    def hello(self, token: str, **versions: str) -> tuple[str, dict[str, Any]]:
        return self.wire.deliver(
            messages.Hello.KIND, token=token, host=token, versions={**messages.versions(), **versions}
        )

    def joined(self, *tokens: str) -> None:
        for slot, token in enumerate(tokens):
            assert self.hello(token)[0] == messages.Welcome.KIND
            self.wire.deliver(messages.Ping.KIND, client=token, slot=slot, token=token, mine_ns=7, commands=0)

    def seen(self, what: str) -> list[dict[str, Any]]:
        rows = map(json.loads, (self.folder / "requests-master.jsonl").read_bytes().splitlines())
        return [r for r in rows if r.get("what") == what]


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        sleep(0.01)


@pytest.fixture
def master(tmp_path: Path) -> Master:
    return Master(tmp_path)


def test_master_gives_slots_and_plan_and_begins_with_the_last_worker(master: Master) -> None:
    kind, welcome = master.hello("a")
    assert (kind, welcome["slot"], welcome["bundle"]["plan"]["seed"]) == (messages.Welcome.KIND, 0, 1)
    assert master.hello("a")[1]["slot"] == 0, "asked again, it has the same place"
    master.joined("a")
    sleep(0.2)
    assert master.begun == []
    master.joined("a", "b")
    wait_until(lambda: master.begun)
    assert master.begun == [2]
    assert [r["worker"] for r in master.seen("joined")] == [0, 1]


@pytest.mark.parametrize(("which", "theirs"), [("loadchaos", "0.0.9"), ("locust", "2.1.0")])
def test_master_refuses_a_worker_of_another_version(master: Master, which: str, theirs: str) -> None:
    kind, answer = master.hello("old", **{which: theirs})
    assert kind == messages.Refused.KIND
    assert theirs in answer["why"]
    assert "install the same version" in answer["why"]
    assert [r["what"] for r in master.seen("refused")] == ["refused"]
    assert master.hello("new")[1]["slot"] == 0, "it has taken no place"


def test_master_lets_a_late_worker_wait_and_records_it_once(master: Master) -> None:
    master.joined("a", "b")
    wait_until(lambda: master.begun)
    assert master.hello("c")[0] == messages.Wait.KIND
    assert master.hello("c")[0] == messages.Wait.KIND
    assert [r["host"] for r in master.seen("late")] == ["c"]


def test_master_writes_rows_once_and_in_order(master: Master) -> None:
    master.joined("a", "b")
    first, second = ROW * 3, ROW * 2
    now_ns = time.monotonic_ns()

    def send(offset: int, rows: bytes) -> dict[str, Any]:
        data = messages.compress(rows)
        return master.wire.deliver(messages.RowPiece.KIND, slot=1, token="b", offset=offset, rows=data, sent_ns=now_ns)[
            1
        ]

    assert send(len(first), second) == {"part": 0, "received": 0, "resend": True}, "one before it is missing"
    assert send(0, first) == {"part": 0, "received": len(first), "resend": False}
    assert send(0, first) == {"part": 0, "received": len(first), "resend": False}, "it came twice"
    assert send(len(first), second)["received"] == len(first + second)
    assert (master.folder / "requests-1.jsonl").read_bytes() == first + second


def test_master_ignores_rows_of_unknown_workers(master: Master) -> None:
    master.joined("a", "b")
    before = len(master.wire.sent)
    for more in ({"slot": 0, "token": "x"}, {"slot": 9, "token": "a"}, {"slot": None, "token": "a"}):
        compress = messages.compress(ROW)
        master.wire.listeners[messages.RowPiece.KIND](
            environment=None,
            msg=SimpleNamespace(data={"offset": 0, "rows": compress, "sent_ns": 0, **more}, node_id="s"),
        )
    assert len(master.wire.sent) == before
    assert not (master.folder / "requests-0.jsonl").exists()


def test_master_records_a_slow_worker_once(master: Master) -> None:
    master.joined("a", "b")
    for n in range(2):
        long_ago = time.monotonic_ns() - 3 * master_module.SLOW_NS
        master.wire.deliver(
            messages.RowPiece.KIND,
            slot=0,
            token="a",
            offset=n * len(ROW),
            rows=messages.compress(ROW),
            sent_ns=long_ago,
        )
    assert [r["worker"] for r in master.seen("slow")] == [0]


def test_master_sends_commands_to_all_and_again_to_those_that_missed_some(master: Master) -> None:
    master.joined("a", "b")
    with (master.folder / "control.jsonl").open("w") as f:
        f.write('{"row":"control","at_ns":1,"what":"pause","why":""}\n')
    wait_until(lambda: master.wire.kinds()[messages.CommandRows.KIND] == 2)
    kind, data = master.wire.deliver(messages.Ping.KIND, client="a", slot=0, token="a", mine_ns=7, commands=0)
    assert (kind, data["first"], data["rows"][0]["what"]) == (messages.CommandRows.KIND, 0, "pause")
    assert (
        master.wire.deliver(messages.Ping.KIND, client="a", slot=0, token="a", mine_ns=7, commands=1)[0]
        == messages.Pong.KIND
    )


def test_master_ends_the_load_when_all_workers_are_done(master: Master) -> None:
    master.joined("a", "b")
    wait_until(lambda: master.begun)
    master.wire.deliver(messages.Done.KIND, slot=0, token="a", why="done")
    master.wire.deliver(messages.Done.KIND, slot=1, token="b", why="done")
    wait_until(lambda: master.on_end)
    assert master.on_end == [None]
    assert not [r for r in master.seen("begin") if r["row"] == "missed"]


def test_master_ends_with_an_error_without_any_worker(tmp_path: Path) -> None:
    master = Master(tmp_path, wait_s=0.1)
    wait_until(lambda: master.on_end)
    assert "no worker connected within 0.1 s" in str(master.on_end[0])


def test_master_records_an_absent_worker_and_its_missed_share(tmp_path: Path) -> None:
    master = Master(tmp_path, wait_s=0.3)
    master.joined("a")
    wait_until(lambda: master.begun)
    assert master.begun == [1]
    assert [r["worker"] for r in master.seen("absent")] == [1]
    master.wire.deliver(messages.Done.KIND, slot=0, token="a", why="done")
    wait_until(lambda: master.on_end)
    rows = [json.loads(line) for line in (tmp_path / "requests-master.jsonl").read_bytes().splitlines()]
    assert [(r["traffic"], r["why"], r["count"]) for r in rows if r["row"] == "missed"] == [("text", "worker_lost", 50)]


# --- the worker's side ----------------------------------------------------------------------------------------------------


def test_worker_link_sends_rows_measures_the_clock_and_resends(tmp_path: Path) -> None:
    wire, file = Wire(), tmp_path / "requests-3.jsonl"
    link = worker_link.WorkerLink(wire, tmp_path, 3, "t", lambda: None)
    file.write_bytes(ROW * 2 + b'{"row":"begin","id"')
    wait_until(lambda: wire.kinds()[messages.RowPiece.KIND])
    _, data, _ = next(s for s in wire.sent if s[0] == messages.RowPiece.KIND)
    assert (data["offset"], messages.decompress(data["rows"]), data["slot"]) == (0, ROW * 2, 3)
    wire.deliver(messages.Ack.KIND, received=0, resend=True)
    wait_until(lambda: wire.kinds()[messages.RowPiece.KIND] == 2)
    assert wire.sent[-1][1]["offset"] == 0
    for _ in range(8):
        wire.deliver(messages.Pong.KIND, mine_ns=time.monotonic_ns(), theirs_ns=time.monotonic_ns() + 10**12)
    assert link.known.is_set()
    assert abs(link.clock.offset_ns - 10**12) < 50_000_000


def test_worker_link_finishes_only_when_the_master_has_every_row(tmp_path: Path) -> None:
    wire, file = Wire(), tmp_path / "requests-0.jsonl"
    link = worker_link.WorkerLink(wire, tmp_path, 0, "t", lambda: None)
    file.write_bytes(ROW)
    assert not link.finish("done", 0.3)
    assert wire.kinds()[messages.Done.KIND] == 0
    wire.deliver(messages.Ack.KIND, received=len(ROW), resend=False)
    assert link.finish("done", 0.3)
    assert wire.sent[-1][1] == {"why": "done", "slot": 0, "token": "t"}


class Through(Wire):
    """A worker's runner whose messages reach a master, which answers it."""

    def __init__(self, master: Master) -> None:
        super().__init__()
        self._master = master

    def send_message(self, msg_type: str, data: Any = None, client_id: str | None = None) -> None:
        super().send_message(msg_type, data, client_id)
        kind, answer = self._master.wire.deliver(msg_type, client="a", **(data or {}))
        if kind in (messages.Ack.KIND, messages.Pong.KIND):
            spawn(self._on_answer, kind, answer)

    def _on_answer(self, kind: str, answer: dict[str, Any]) -> None:
        self.deliver(kind, **answer)


def test_worker_link_sends_part_after_part_and_converts_them(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    there = Master(tmp_path / "there", workers=1)
    there.joined("a")
    here, copy = (RunFolder(tmp_path / name).requests(0) for name in ("here", "there"))
    rows = [{"row": "heartbeat", "at_ns": n} for n in range(7)]
    writer = Writer(here, "locust-0", lambda: {"host": "h"})
    link = worker_link.WorkerLink(Through(there), here.parent, 0, "a", lambda: None)
    for n, row in enumerate(rows):
        if n in (3, 5):
            writer._next_part()
        writer.write(row)
    assert link.finish("done", 60)
    reported = list(Tail(here).rows())
    assert list(Tail(copy).rows()) == reported
    assert [r["host"] for r in reported if r["row"] == "header"] == ["h"] * 3
    assert [r for r in reported if r["row"] != "header"] == rows
    assert parquet.part_of(copy, 2).read_bytes() == parquet.part_of(here, 2).read_bytes()
    wait_until(lambda: parquet.parquet_of(parquet.part_of(here, 1)).exists() and not parquet.part_of(here, 1).exists())
    assert list(Tail(here).rows()) == reported


def test_worker_link_applies_commands_once_and_in_order(tmp_path: Path) -> None:
    wire = Wire()
    worker_link.WorkerLink(wire, tmp_path, 0, "t", lambda: None)
    pause, resume = ({"row": "control", "what": w} for w in ("pause", "resume"))
    for first, commands in ((1, [resume]), (0, [pause]), (0, [pause, resume]), (1, [resume])):
        wire.listeners[messages.CommandRows.KIND](
            environment=None, msg=SimpleNamespace(data={"first": first, "rows": commands})
        )
    written = [json.loads(line)["what"] for line in (tmp_path / "control.jsonl").read_bytes().splitlines()]
    assert written == ["pause", "resume"]


# --- clocks, shares, bundles ----------------------------------------------------------------------------------------------


def test_master_clock_uses_the_shortest_round_trip_of_a_minute() -> None:
    clock, second = MasterClock(), 10**9
    clock.sample(0, 100 * second + 40, 100)
    clock.sample(second, 101 * second + 500_000, second + 2_000_000)
    assert (clock.offset_ns, clock.rtt_ns) == (100 * second - 10, 100)
    clock.sample(70 * second, 170 * second + 3_001_000, 70 * second + 2_000_000)
    assert clock.rtt_ns == 2_000_000
    moved = clock.to_master_time({"row": "end", "at_ns": 5, "due_ns": 1, "first_token_ns": None, "largest_gap_ns": 3})
    assert moved == {
        "row": "end",
        "at_ns": 5 + clock.offset_ns,
        "due_ns": 1 + clock.offset_ns,
        "first_token_ns": None,
        "largest_gap_ns": 3,
    }


@pytest.mark.parametrize(
    ("load", "stop_after_s", "begun", "unsent"),
    [
        ({"rate": "10/s", "for": "10s"}, None, 20, 30),
        ({"rate": "10/s", "for": "10s"}, 6.0, 20, 10),
        ({"users": 4, "requests": 30, "rounds": 2}, None, 5, 25),
        ({"users": 4, "requests": 30, "rounds": 2}, 6.0, 5, 0),
        ({"users": 4, "for": "10s"}, None, 5, 0),
    ],
)
def test_unsent_share_counts_own_steps_that_were_due(
    tmp_path: Path, load: dict[str, Any], stop_after_s: float | None, begun: int, unsent: int
) -> None:
    lay_out(tmp_path, [load], 2)
    rows = tmp_path / "requests-0.jsonl"
    reported = [{"row": "begin", "id": f"lc-ab-{i}", "traffic": "text", "phase": 0, "step": i} for i in range(begun)]
    reported += [
        {**row, "id": f"{row['id']}.{n}"} for row in reported[:3] for n in (1, 2)
    ]  # pipelined: no steps of the plan
    rows.write_text("".join(json.dumps(row) + "\n" for row in reported))
    begins = PhaseBegins()
    begins.feed(b'{"row":"phase","phase":0,"round":0,"what":"begin","at_ns":1000}\n')
    if stop_after_s is not None:
        at_ns = int(stop_after_s * 1e9) + 500
        begins.feed_commands([{"row": "control", "what": "stop", "at_ns": at_ns, "why": ""}])
    assert sum(unsent_share(tmp_path / "plan.json", 0, rows, begins).values()) == unsent


def test_bundle_contains_the_files_of_a_profile(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    (there / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (there / "asked.jsonl").write_text('{"text": "what?", "image": "a.png"}\n')
    traffic = {**TEXT, "payload": {"requests": {"file": str(there / "asked.jsonl")}}}
    lay_out(tmp_path, [{"rate": "1/s", "for": "1s"}], 1, traffic)
    compress = bundle.pack(tmp_path)
    (there / "asked.jsonl").unlink()
    path = bundle.unpack(compress, here, 4)
    plan = json.loads(path.read_text())
    asked = Path(plan["profile"]["traffic"][0]["payload"]["requests"]["file"])
    assert asked.is_relative_to(here)
    assert (asked.parent / "a.png").read_bytes() == b"\x89PNG\r\n\x1a\n"
    assert (plan["worker"], plan["spool"], plan["tag"]) == (4, str(here), bundle.run_tag(str(tmp_path)))


def test_bundle_refuses_to_write_outside_the_worker_folder(tmp_path: Path) -> None:
    lay_out(tmp_path, [{"rate": "1/s", "for": "1s"}], 1)
    compress = replace(bundle.pack(tmp_path), files={"../../evil": b"x"})
    with pytest.raises(LedgerError, match="outside"):
        bundle.unpack(compress, tmp_path / "here", 0)


@pytest.mark.parametrize("named", ["/etc/passwd", "../../secret"])
def test_bundle_refuses_to_read_elsewhere_on_the_worker(tmp_path: Path, named: str) -> None:
    traffic = {**TEXT, "payload": {"requests": {"file": named}}}
    lay_out(tmp_path, [{"rate": "1/s", "for": "1s"}], 1, traffic)
    plan = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "here").mkdir()
    with pytest.raises(LedgerError, match="outside"):
        bundle.unpack(from_json(bundle.Bundle, {"plan": plan}), tmp_path / "here", 0)


def test_master_ignores_rows_of_a_slot_that_nobody_has(master: Master) -> None:
    master.hello("x", loadchaos="other")
    master.wire.deliver(messages.RowPiece.KIND, slot=1, token="", offset=0, rows=messages.compress(ROW), sent_ns=0)
    assert not (master.folder / "requests-1.jsonl").exists()


def test_decompress_refuses_a_piece_that_is_too_large() -> None:
    with pytest.raises(ValueError, match="larger"):
        messages.decompress(messages.compress(b"x" * (8 * messages.PIECE_BYTES)))
    with pytest.raises(ValueError, match="decompressed"):
        messages.decompress(b"nonsense")
