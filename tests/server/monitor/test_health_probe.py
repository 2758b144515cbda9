"""Probes against a real listener that answers, hangs, goes and comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from loadchaos.core.redact import Redactor
from loadchaos.server.monitor import health_probe as probing
from loadchaos.server.monitor.health_probe import HealthProbe
from loadchaos.server.monitor.http_get import parse_endpoint
from tests.rows import EmittedRows
from tests.server.monitor.conftest import SmallServer
from tests.waiting import beside


@pytest.fixture(params=["127.0.0.1", "localhost"])
def server(server: SmallServer, request: pytest.FixtureRequest) -> SmallServer:
    """An address is connected to in another way than a name."""
    server.url = f"http://{request.param}:{server.port}"
    return server


@contextlib.asynccontextmanager
async def probed(server: SmallServer, rows: EmittedRows, *, calm: bool = False) -> AsyncIterator[HealthProbe]:
    endpoint = parse_endpoint(server.url + "/health")
    probe = HealthProbe("a", endpoint, rows.append, Redactor(["planted-secret"]), calm=calm)
    await server.start()
    async with beside(probe.run()):
        yield probe
    await server.stop()


async def test_health_probe_writes_both_kinds_of_rows(server: SmallServer, rows: EmittedRows) -> None:
    async with probed(server, rows):
        await rows.until(lambda: rows.of("probe", what="health", ok=True) and rows.of("probe", what="tcp", ok=True))
        row = rows.of("probe", what="health")[0]
        assert (row["replica"], row["status"], row["error"], row["body"]) == ("a", 200, None, None)
        assert row["took_ns"] > 0


async def test_health_probe_reads_folded_headers(server: SmallServer, rows: EmittedRows) -> None:
    server.raw = b"HTTP/1.1 200 OK\r\nVia: one,\r\n\ttwo\r\nContent-Length:\r\n 2\r\n\r\nok"
    async with probed(server, rows):
        await rows.until(lambda: rows.of("probe", what="health", ok=True))


async def test_health_probe_records_the_redacted_body_of_a_503(server: SmallServer, rows: EmittedRows) -> None:
    server.pages["/health"] = (503, b'{"status":"unhealthy","message":"planted-secret gone"}')
    async with probed(server, rows):
        await rows.until(lambda: rows.of("probe", what="health", ok=False))
        row = rows.of("probe", what="health")[0]
        assert row["status"] == 503
        assert row["body"] == '{"status":"unhealthy","message":"[redacted] gone"}'


async def test_health_probe_records_refused_and_the_return(server: SmallServer, rows: EmittedRows) -> None:
    async with probed(server, rows):
        await rows.until(lambda: rows.of("probe", what="health", ok=True))
        await server.stop()
        await rows.until(lambda: rows.of("probe", what="tcp", ok=False))
        assert rows.of("probe", what="tcp", ok=False)[0]["error"] == "refused"
        await rows.until(lambda: rows.of("probe", what="health", ok=False))
        rows.clear()
        await server.start()
        await rows.until(lambda: rows.of("probe", what="health", ok=True))


async def test_health_probe_slows_down_for_a_server_that_is_down(
    server: SmallServer, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_DOWN_AFTER_S", 0.1)
    monkeypatch.setattr(probing, "DOWN_EVERY_S", 0.3)
    async with probed(server, rows) as probe:
        await rows.until(lambda: rows.of("probe", what="health", ok=True))
        await server.stop()
        await rows.until(lambda: probe.down)
        rows.clear()
        await rows.until(lambda: len(rows.of("probe", what="tcp")) == 4)
        times = [r["at_ns"] for r in rows.of("probe", what="tcp")]
        assert times[3] - times[1] > 0.55e9
        assert not rows.of("probe", what="health")
        await server.start()
        await rows.until(lambda: rows.of("probe", what="health", ok=True))


async def test_health_probe_of_a_watched_server_is_calm_until_the_first_failure(
    server: SmallServer, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_CALM_AFTER_S", 0.3)
    async with probed(server, rows, calm=True):
        await rows.until(lambda: rows.of("probe", what="health", ok=True))
        await asyncio.sleep(0.6)
        rows.clear()
        await rows.until(lambda: len(rows.of("probe", what="health", ok=True)) == 3)
        times = [row["at_ns"] for row in rows.of("probe", what="health")]
        assert times[2] - times[0] > 0.75e9, "half as often; a late row of a busy machine shortens it"
        await server.stop()
        await rows.until(lambda: len(rows.of("probe", what="tcp", ok=False)) == 4)
        refused = [row["at_ns"] for row in rows.of("probe", what="tcp", ok=False)]
        assert refused[3] - refused[0] < 2.5e9, "as often as ever"


async def test_health_probe_times_out_while_connects_succeed(
    server: SmallServer, rows: EmittedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "LIMIT_S", 0.2)
    async with probed(server, rows):
        await rows.until(lambda: rows.of("probe", what="health", ok=True))
        server.hang = True
        await rows.until(lambda: rows.of("probe", what="health", ok=False))
        rows_of_hang = rows.of("probe", what="health", ok=False)
        rows.clear()
        await rows.until(lambda: rows.of("probe", what="tcp", ok=True))
        assert rows_of_hang[0]["error"] == "timeout"
        server.hang = False


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", "reset"),
        (b"", "reset"),
    ],
)
async def test_health_probe_names_incomplete_responses(
    server: SmallServer, rows: EmittedRows, raw: bytes, error: str
) -> None:
    server.raw = raw
    async with probed(server, rows):
        await rows.until(lambda: rows.of("probe", what="health"))
        row = rows.of("probe", what="health")[0]
        assert row["ok"] is False
        assert row["error"].startswith(error)


async def test_health_probe_without_a_health_page_asks_for_the_models(server: SmallServer, rows: EmittedRows) -> None:
    server.pages.clear()
    async with probed(server, rows) as probe:
        await rows.until(lambda: probe._endpoint.path.endswith("/v1/models"))
        assert rows.of("probe", what="health") == []
        server.pages["/v1/models"] = (200, b"{}")
        await rows.until(lambda: rows.of("probe", what="health", ok=True))
        assert rows.of("probe", what="health")[0]["path"] == "/v1/models"
        server.pages.clear()  # it was there once: now it is not healthy
        await rows.until(lambda: rows.of("probe", what="health", ok=False, status=404))


PORTAL = b"<!DOCTYPE html>\n<html><head><title>Sign in to WiFi</title></head></html>"


async def test_health_probe_takes_no_web_page_as_healthy(server: SmallServer, rows: EmittedRows) -> None:
    server.pages |= {"/health": (200, PORTAL), "/v1/models": (200, PORTAL)}
    async with probed(server, rows) as probe:
        await rows.until(lambda: probe._endpoint.path.endswith("/v1/models"))
        assert rows.of("probe", what="health") == []
        server.pages["/v1/models"] = (200, b"{}")  # the front page of a gateway answers every other path
        await rows.until(lambda: rows.of("probe", what="health", ok=True, path="/v1/models"))
        server.pages["/v1/models"] = (200, PORTAL)
        await rows.until(lambda: rows.of("probe", what="health", ok=False, status=200))
        assert "Sign in" in rows.of("probe", what="health", ok=False)[0]["body"]
