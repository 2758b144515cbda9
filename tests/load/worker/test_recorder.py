import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gevent
import orjson
import pytest

from loadchaos.core.errors import LedgerError
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.recorder import RequestRecorder
from tests.load.worker.conftest import first_requests, planned

_gevent = cast("Any", gevent)


@pytest.fixture
def record(tmp_path: Path) -> RequestRecorder:
    return RequestRecorder(tmp_path / "requests-0.jsonl", 0)


@pytest.fixture
def begin(record: RequestRecorder, tmp_path: Path) -> Callable[[], str]:
    """Begins the next request of a plan; its id."""
    worker = planned(tmp_path)
    requests = iter(first_requests(worker, 10))

    def one() -> str:
        request = next(requests)
        record.begin(Exchange(request, Slot(worker.target), Progress(), 0))
        return request.id

    return one


def in_the_hub(work: Callable[[], None]) -> None:
    """As arrivals are handed over: by a callback of the loop."""
    _gevent.get_hub().loop.run_callback(work)
    _gevent.sleep(0.01)


def test_recorder_held_begin_rows_are_written_before_their_requests_go_out(
    record: RequestRecorder, begin: Callable[[], str], tmp_path: Path
) -> None:
    ledger = tmp_path / "requests-0.jsonl"
    out: list[bool] = []

    def user() -> None:
        request_id = begin()
        out.append(request_id.encode() in ledger.read_bytes())

    users = [_gevent.Greenlet(user) for _ in range(3)]

    def slice_of_arrivals() -> None:
        record.hold()
        for greenlet in users:
            greenlet.switch()
        out.append(record.begun == 0)
        record.release()

    in_the_hub(slice_of_arrivals)
    assert out == [True] * 4
    assert record.begun == len(record.in_flight) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
def test_recorder_raises_an_unwritable_ledger_in_all_waiting_requests(
    record: RequestRecorder, begin: Callable[[], str]
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, record._writer._fd)
    os.close(full)
    errors: list[str] = []

    def user() -> None:
        try:
            begin()
        except LedgerError as e:
            errors.append(str(e))

    def slice_of_arrivals() -> None:
        record.hold()
        for greenlet in [_gevent.Greenlet(user) for _ in range(3)]:
            greenlet.switch()
        with pytest.raises(LedgerError):
            record.release()

    in_the_hub(slice_of_arrivals)
    assert len(errors) == 3
    assert "No space left" in errors[0]
    assert not record.in_flight


def test_recorder_close_syncs_rows_that_were_held(
    record: RequestRecorder, begin: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of compact mode and held rows are in the file, and on the disk, before it is closed."""
    ledger = tmp_path / "requests-0.jsonl"
    on_disk: list[bytes] = []
    monkeypatch.setattr("loadchaos.core.ledger.writer.os.fsync", lambda _fd: on_disk.append(ledger.read_bytes()))
    record.set_compact(True)
    request_id = begin().encode()
    record.hold()
    record.phase(0, 7, "end")
    assert request_id not in ledger.read_bytes()
    record.close()
    assert len(on_disk) == 1
    assert request_id in on_disk[0]
    assert b'"round":7' in on_disk[0]


def test_recorder_rows_keep_the_time_a_request_was_due(begin: Callable[[], str], tmp_path: Path) -> None:
    """The fixture's requests were due at 0; they begin now."""
    begin()
    rows = [orjson.loads(line) for line in (tmp_path / "requests-0.jsonl").read_bytes().splitlines()]
    (row,) = [row for row in rows if row["row"] == "begin"]
    assert row["due_ns"] == 0
    assert row["at_ns"] > 0
