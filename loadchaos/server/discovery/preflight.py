"""Preflight checks: the server is healthy, free and fits the profile. A failed one is a TargetError."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from loadchaos.core import http_client
from loadchaos.core.errors import AuthorizationError, TargetError, UnreachableError
from loadchaos.core.http_answer import first_words, web_page
from loadchaos.core.ledger.rows import Emit, PreflightRow
from loadchaos.core.model import Facts
from loadchaos.core.units import describe_duration
from loadchaos.server.answer import SMALL_QUESTION
from loadchaos.server.dialects import DIALECTS, Dialect
from loadchaos.server.dialects.gateways import ABSENT, HEALTH_PATH
from loadchaos.server.discovery.client import (
    DiscoveryClient,
    DiscoveryResponse,
    connection_error,
    how_to_reach,
    refuse_plain_http,
    refuse_web_page,
)
from loadchaos.server.monitor.exposition import PageParser

_POLL_S = 0.2
_PRINT_EVERY_S = 10.0
_OTHER_PORT_S = 2.0
_OTHERS_S = 5.0
_OTHERS_POLL_S = 0.5
_MORE_TIME = "read its log, or give it more time with --wait-ready"
READ_THE_LOG = "; read the end of its log"
"""End of the message about a server that exited before it was healthy, which the cause replaces."""


async def wait_until_healthy(
    client: DiscoveryClient,
    within_s: float,
    ended: Callable[[], str | None],
    print_line: Callable[[str], None] = lambda _: None,
    ports: Callable[[], Sequence[int]] = tuple,
) -> None:
    """Poll /health, without it /v1/models, without that the named model. `ended` tells why the launched server has
    ended; `ports` gives those that it announces: one that answers is told every 10 s and in the error. Raises
    UnreachableError where it is not healthy `within_s`, or speaks plain http, and TargetError where it has ended, or
    answers with web pages.
    """
    begin = time.monotonic()
    printed = begin
    last = "no request was sent yet"
    while True:
        client.began_s, client.incomplete = time.monotonic(), 0  # a server that still starts is not judged
        answer = await _health(client)
        # 401 comes from a running server; the error for it is raised when the models are read.
        if answer.status in (200, 401, 403):
            refuse_web_page(client.base_url, answer)
            return
        await refuse_plain_http(client, answer)
        last = connection_error(answer.text)
        if answer.status:
            words = first_words(answer.text)
            last = f"{client.health_path or HEALTH_PATH} answered {answer.status}" + (f" {words!r}" if words else "")
        if why := ended():
            raise TargetError(f"the server did not become healthy: {why}{READ_THE_LOG}")
        now = time.monotonic()
        late, found = now - begin >= within_s, None
        if (late or now - printed >= _PRINT_EVERY_S) and (found := await _healthy_port(client, ports())) is not None:
            last = f"the started server answers at {found}: give --target {found}"
        if late:
            hint = "" if found is not None else f"; {how_to_reach(answer.text) or _MORE_TIME}"
            raise UnreachableError(
                f"{client.base_url} was not healthy within {describe_duration(within_s)}: {last}{hint}"
            )
        if now - printed >= _PRINT_EVERY_S:
            print_line(
                f"waiting for {client.base_url} to become healthy, {now - begin:.0f} s of at most "
                f"{describe_duration(within_s)} ({last}); Ctrl-C ends the run"
            )
            printed = now
        await asyncio.sleep(_POLL_S)


async def _healthy_port(client: DiscoveryClient, ports: Sequence[int]) -> str | None:
    own = urlsplit(client.base_url).port
    for url in [f"http://127.0.0.1:{port}" for port in ports if port != own]:
        with contextlib.suppress(*http_client.FAILURES):
            answer = await http_client.request(client.asker.http, "GET", url + HEALTH_PATH, limit_s=_OTHER_PORT_S)
            if answer.status == 200 and web_page(answer.status, answer.text) is None:
                return url
    return None


async def _health(client: DiscoveryClient) -> DiscoveryResponse:
    await client.find_health_path()
    answer = await client.ask("GET", client.health_path or HEALTH_PATH, admin=True, limit_s=3.0)
    if answer.status in ABSENT or web_page(answer.status, answer.text) is not None:
        answer = await client.models(3.0)
    if answer.status in ABSENT and client.model is not None:
        answer = await client.ask_named(client.model)
        client.failed = None  # it may still be starting
    return answer


async def require_first_answer(client: DiscoveryClient, model: str) -> None:
    """Send a real request, unless this process has answered one: a healthy server may die of its first. Raises
    TargetError.
    """
    if client.memory is not None and client.memory.generated:
        return
    answer = await client.generate(model, SMALL_QUESTION, process=True)
    if answer.status in (401, 403):
        return  # an answer; the error for it is raised where the models are read
    if client.failed is not None:
        raise TargetError(
            f"{client.base_url} is healthy, but its first real request failed: {client.failed}; see its log"
        )


def require(facts: Facts, requires: Sequence[str], attacks: Sequence[str], image_traffic: Sequence[str]) -> list[str]:
    """Raise TargetError where the server lacks what makes the run possible. Returns warnings: without a mechanism such
    as speculative decoding the verdict can only be unknown.
    """
    dialect = DIALECTS[facts.dialect]
    if image_traffic and facts.images is False and "images" in requires:
        why = facts.sources.get("images", "")
        raise TargetError(
            f"the profile sends images (traffic {', '.join(image_traffic)}), but the model {facts.model} takes none "
            f"({why}): serve a multimodal model, or remove the images with --set"
        )
    for name in attacks:
        if why := lacks_operation(name, dialect, facts):
            others = "" if name in dialect.admin else f" (it has {', '.join(sorted(dialect.admin)) or 'none'})"
            raise TargetError(f"attack {name}: {why}{others}: leave it out of the profile")
    notes = []
    if "speculative_decoding" in requires and facts.speculative_decoding is False:
        notes.append("the server runs without speculative decoding, which this profile tests: a pass will be unknown")
    if "lora_adapters" in requires and not facts.lora_adapters:
        notes.append("the server lists no LoRA adapters, which this profile tests: a pass will be unknown")
    return notes


def lacks_operation(name: str, dialect: Dialect, facts: Facts) -> str:
    """The reason why the server lacks an admin operation; "" if it has it, or if that is not known."""
    operation = dialect.admin.get(name)
    if operation is None:
        return f"{dialect.title} does not have it"
    if operation.is_newer_than(facts.version):
        return f"needs version {operation.since} or later; this server is {facts.version}"
    gate = dialect.development_gate
    if gate and operation.gate.startswith(gate) and facts.development_endpoints is False:
        return f"needs the server's development endpoints, which are off: {operation.gate}"
    return ""


async def refuse_to_disturb(
    client: DiscoveryClient, dialect: Dialect, *, shared: bool, emit: Emit, say: Callable[[str], None]
) -> None:
    """Watch the running requests for 5 s. Raises AuthorizationError if others use the server, and `shared` is false."""
    running = next((m for m in dialect.metrics if m.ours == "requests_running"), None)
    if running is None or dialect.metrics_path is None:
        return
    say(f"looking for {_OTHERS_S:g} s whether other clients use the server")
    parser = PageParser([running])
    busiest = 0.0
    begin = time.monotonic()
    until = begin + _OTHERS_S
    while time.monotonic() < until:
        page = await client.ask("GET", dialect.metrics_path, admin=True)
        now = max((engine[running.ours] for engine in parser.parse(page.text.encode()).values()), default=0.0)
        if now and time.monotonic() - begin < dialect.metrics_refresh_s:
            until = max(until, begin + dialect.metrics_refresh_s + 1.0)  # the gauge may count requests that have ended
        else:
            busiest = max(busiest, now)
        others = f"{busiest:g} request{'s' * (busiest != 1)} of others running"
        if busiest and not shared:
            raise AuthorizationError(
                f"others use {client.base_url} ({others}), and this run would disturb them; give --shared to run anyway"
            )
        await asyncio.sleep(_OTHERS_POLL_S)
    text = others if busiest else "no other client used the server for 5 s"
    emit(row("others", ok=not busiest, text=text))


def row(name: str, *, ok: bool, text: str) -> PreflightRow:
    return {"row": "preflight", "at_ns": time.monotonic_ns(), "name": name, "ok": ok, "text": text}
