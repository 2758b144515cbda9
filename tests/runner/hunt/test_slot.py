"""Results of a workload as a hunt gets them: refusals are no findings."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.runner.finalize import Result
from loadchaos.runner.hunt import slot
from loadchaos.runner.hunt.corpus import findings_of
from loadchaos.runner.hunt.slot import ServerSlot, SlotSettings, _attacked, _failure, _hang, _refusal

MIN_P = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


def end(status: int, code: int | str | None, text: str = MIN_P) -> dict[str, Any]:
    """End row of a request with an error."""
    return {"row": "end", "status": status, "error_code": code, "error": text}


def named(line: str | None, severity: str = "request") -> dict[str, Any]:
    """Failure of a verdict whose evidence is a line."""
    return {"id": "stream_generator_error", "severity": severity, "attribution": "server", "evidence": {"text": line}}


@pytest.mark.parametrize(
    ("row", "line", "severity", "found"),
    [
        (end(200, 400), f"vllm.exceptions.VLLMValidationError: {MIN_P}", "request", False),
        (end(400, None), MIN_P, "request", False),
        (end(200, 500), MIN_P, "request", True),
        (end(500, 400), MIN_P, "request", True),
        (end(200, None), MIN_P, "request", True),
        (end(200, "invalid"), MIN_P, "request", True),
        (end(200, 400), "IndexError: list index out of range", "request", True),
        (end(200, 400), MIN_P, "engine_death", True),
        (end(200, 400, "no"), "no answer", "request", True),
        (end(200, 400), None, "request", True),
    ],
)
def test_refusals_in_a_status_or_a_stream_are_no_findings(
    row: dict[str, Any], line: str | None, severity: str, found: bool
) -> None:
    refusals = {text} if (text := _refusal(row)) else set()
    failures = [_failure(named(line, severity), [], refusals)]
    assert bool(findings_of({"failures": failures})) is found


def test_wait_in_the_queue_of_an_overloaded_server_is_no_finding() -> None:
    failure = _failure(
        {**named("no byte of the answer arrived for 60 s"), "id": "queue_wait", "attribution": "load"}, [], set()
    )
    assert not findings_of({"failures": [failure]})
    assert findings_of({"failures": [{**failure, "attribution": "server"}]})


@pytest.mark.parametrize(("hung", "answers"), [(("chat",), False), (("models", "chat"), False), ((), True)])
def test_server_that_answers_no_request_hangs(
    hung: tuple[str, ...], answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "_ANSWER_S", 0.2 if hung else 30.0)
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        held.append(writer)
        if not any(word.encode() in head.splitlines()[0] for word in hung):
            body = b'{"data":[{"id":"tiny"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
            writer.close()

    async def ask() -> bool:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            return await ServerSlot(SlotSettings(("serve",), url, str(tmp_path)))._answers()
        finally:
            for writer in held:
                writer.close()
            server.close()

    assert asyncio.run(ask()) is answers


def test_server_that_is_gone_does_not_hang(tmp_path: Path) -> None:
    assert asyncio.run(ServerSlot(SlotSettings(("serve",), "http://127.0.0.1:9", str(tmp_path)))._answers())


@pytest.mark.parametrize(("attacked", "attribution"), [(False, "server"), (True, "self-inflicted")])
def test_hang_after_a_workload_is_a_finding(attacked: bool, attribution: str) -> None:
    failure = _hang(7, attacked)
    assert (failure["severity"], failure["attribution"], failure["after_requests"]) == ("hang", attribution, 7)
    assert findings_of({"failures": [failure]})


@pytest.mark.parametrize(
    ("rows", "attacked"),
    [
        ([], False),
        ([{"row": "attack", "what": "begin", "at_ns": 5}], True),
        ([{"row": "attack", "what": "skipped", "at_ns": 5}], False),
    ],
)
def test_hang_is_ours_only_where_an_attack_was_carried_out(
    rows: list[dict[str, object]], attacked: bool, tmp_path: Path
) -> None:
    header = {"row": "header", "schema": 1, "writer": "run", "pid": 1, "boot_id": "b", "mono_ns": 0, "utc_ns": 0}
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
    assert _attacked(Result(0, None, RunFolder(tmp_path))) is attacked
