import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.errors import OptionError
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.monitor import health_probe as probing
from loadchaos.server.monitor.base import MonitorOutput, ServerAccess
from loadchaos.server.monitor.monitor import Monitor, MonitoredReplica
from tests.rows import EmittedRows
from tests.server.monitor.conftest import SmallServer

PAGE = b'vllm:num_requests_running{engine="0"} 3\nprocess_start_time_seconds 5\n# api_key="planted-secret"\n'


@contextlib.asynccontextmanager
async def watching(server: SmallServer, rows: EmittedRows, folder: Path, **more: Any) -> AsyncIterator[Monitor]:
    target = MonitoredReplica("a", server.url, **more)
    redactor = Redactor(["planted-secret"])
    headers = {"Authorization": "Bearer planted-secret"}
    watch = Monitor(
        [target],
        DIALECTS["vllm"],
        MonitorOutput(rows.append, rows.append, folder, redactor),
        ServerAccess(headers),
    )
    await server.start()
    try:
        await watch.start()
        yield watch
    finally:
        await watch.stop()
        await server.stop()


async def test_scraper_sends_headers_and_keeps_the_first_page_redacted(
    server: SmallServer, rows: EmittedRows, tmp_path: Path
) -> None:
    server.pages["/metrics"] = (200, PAGE)
    async with watching(server, rows, tmp_path):
        await rows.until(lambda: rows.of("page"))
        row = rows.of("metrics")[0]
        assert (row["replica"], row["engine"]) == ("a", "0")
        assert row["values"] == {"requests_running": 3, "process_start_time_s": 5}
        page = rows.of("page")[0]
        assert page["why"] == "start"
        text = (tmp_path / page["file"]).read_text()
        assert "planted-secret" not in text
        assert "num_requests_running" in text
        assert ("/metrics", "Bearer planted-secret") in {(p, h["authorization"]) for p, h in server.requests}


async def test_scraper_keeps_the_pages_of_an_earlier_monitor(
    server: SmallServer, rows: EmittedRows, tmp_path: Path
) -> None:
    server.pages["/metrics"] = (200, PAGE)
    for n in (1, 2):
        async with watching(server, rows, tmp_path):
            await rows.until(partial(lambda n: len(rows.of("page")) == n, n))
    assert [row["file"] for row in rows.of("page")] == ["watch/metrics-1.txt", "watch/metrics-2.txt"]


async def test_scraper_opens_and_closes_a_gap(server: SmallServer, rows: EmittedRows, tmp_path: Path) -> None:
    server.pages["/metrics"] = (500, b"")
    async with watching(server, rows, tmp_path):
        await rows.until(lambda: rows.of("gap", source="scrape"))
        assert rows.of("gap", source="scrape")[0]["why"] == "status 500"
        server.pages["/metrics"] = (200, PAGE)
        await rows.until(lambda: rows.of("gap", source="scrape", why="over"))
        assert rows.of("metrics")


@pytest.mark.parametrize("framed", [True, False], ids=["with its length", "without"])
async def test_scraper_drops_a_number_that_was_cut(
    framed: bool, server: SmallServer, rows: EmittedRows, tmp_path: Path
) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 5000\r\n" if framed else b"") + b"\r\n"

    server.pages["/metrics"] = (200, b"vllm:generation_tokens_total 12345\n")
    async with watching(server, rows, tmp_path):
        await rows.until(lambda: rows.of("metrics") and rows.of("probe", what="health", ok=True))
        server.raw = head + b"vllm:num_requests_running 3\nvllm:generation_tokens_total 12"  # of 12346
        await rows.until(lambda: rows.of("gap", source="scrape") if framed else rows.of("metrics")[1:])
    values = [r["values"] for r in rows.of("metrics")]
    assert values[0] == {"generation_tokens_total": 12345}
    assert all("generation_tokens_total" not in page for page in values[1:])


async def test_scraper_leaves_a_server_that_is_down_alone(
    server: SmallServer, rows: EmittedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_DOWN_AFTER_S", 0.1)

    server.pages["/metrics"] = (200, PAGE)
    async with watching(server, rows, tmp_path):
        await rows.until(lambda: rows.of("metrics"))
        server.pages["/health"] = (503, b"")
        await rows.until(lambda: rows.of("gap", source="scrape", why="the server is down"))


async def test_read_head_redacts(server: SmallServer, rows: EmittedRows, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("vLLM API server version 0.32.0\nargs: {'api_key': ['planted-secret']}\n")

    async with watching(server, rows, tmp_path / "run", logs=(str(log),)) as watch:
        head = await watch.read_head("a")
        assert "version 0.32.0" in head
        assert "planted-secret" not in head


async def test_monitor_refuses_a_wrong_log_spec(server: SmallServer, rows: EmittedRows, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="k8s:NAMESPACE/POD"):
        async with watching(server, rows, tmp_path, logs=("k8s:pod-without-namespace",)):
            pass


async def test_event_loop_lag_is_a_gap(server: SmallServer, rows: EmittedRows, tmp_path: Path) -> None:
    async with watching(server, rows, tmp_path):
        await rows.until(lambda: rows.of("probe"))
        time.sleep(1.6)  # noqa: ASYNC251 - holding up the loop is what is tested
        await rows.until(lambda: rows.of("gap", source="watch"))
        assert rows.of("gap", source="watch")[0]["seconds"] > 1


async def test_event_loop_lag_records_a_changed_wall_clock(
    server: SmallServer, rows: EmittedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(server, rows, tmp_path):
        await rows.until(lambda: rows.of("probe", ok=True))
        real = time.time
        monkeypatch.setattr("time.time", lambda: real() - 3600)
        await rows.until(lambda: any("wall clock" in g["why"] for g in rows.of("gap", source="watch")))
        before = len(rows)
        await rows.until(lambda: any(r["row"] == "probe" for r in rows[before:]))
    reasons = [g["why"] for g in rows.of("gap", source="watch") if "wall clock" in g["why"]]
    assert reasons == ["the wall clock was set by -3600.0 s"]
    times = [r["at_ns"] for r in rows]
    assert max(times) - min(times) < 3600 * 10**9


async def test_monitor_restarts_a_part_that_failed(
    server: SmallServer, rows: EmittedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[bool] = []

    async def fail_once(self: Any) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("a mistake of ours")
        await asyncio.sleep(3600)

    monkeypatch.setattr("loadchaos.server.monitor.scraper.Scraper.run", fail_once)

    async with watching(server, rows, tmp_path):
        await rows.until(lambda: rows.of("gap", source="scrape"))
        assert "a mistake of ours" in rows.of("gap", source="scrape")[0]["why"]
        await rows.until(lambda: len(rows.of("probe", what="health", ok=True)) > 2)
