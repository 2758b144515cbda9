"""Before the load, after ledger and watch are on: is the server there, is it healthy, does the profile fit it?

Whatever makes the run impossible is a TargetError (exit 4) that says what to do; what was found goes to the ledger.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence

from loadchaos.core.errors import AuthorizationError, TargetError
from loadchaos.core.ledger.rows import Emit, PreflightRow
from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, Dialect, version_key
from loadchaos.server.discovery.client import DiscoveryClient

_POLL_S = 0.2
_SAY_EVERY_S = 10.0
_OTHERS_S = 5.0
_OTHERS_POLL_S = 0.5


async def wait_until_healthy(
    asker: DiscoveryClient, within_s: float, ended: Callable[[], str | None], say: Callable[[str], None]
) -> None:
    """Poll /health (or /v1/models where there is none) until it answers 200; raises TargetError after `within_s`.

    `ended` returns why the launched server is gone, or None while it lives: then waiting makes no sense.
    """
    begin = time.monotonic()
    said = begin
    last = "nothing was asked yet"
    while True:
        answer = await asker.ask("GET", "/health", admin=True, limit_s=3.0)
        if answer.status == 404:
            answer = await asker.ask("GET", "/v1/models", limit_s=3.0)
        # 401 is an answer of a living server; what to do about it is said when the models are asked for.
        if answer.status in (200, 401, 403):
            return
        last = f"/health answered {answer.status}" if answer.status else answer.text
        if why := ended():
            raise TargetError(f"the server never became healthy: {why}; the end of its log says more")
        now = time.monotonic()
        if now - begin >= within_s:
            raise TargetError(f"{asker.base_url} was not healthy within {within_s:g} s: {last}{_hint(answer.text)}")
        if now - said >= _SAY_EVERY_S:
            say(
                f"waiting for {asker.base_url} to become healthy, {now - begin:.0f} s of {within_s:g} s at most ({last}); "
                "Ctrl-C ends the run"
            )
            said = now
        await asyncio.sleep(_POLL_S)


async def require_an_answer(asker: DiscoveryClient, model: str) -> None:
    """One real request: a server may be healthy and die of its first. TargetError where it gets no answer."""
    answer = await asker.generate(model, "Hello")
    if answer.status in (401, 403):
        return  # an answer; what to do about it is said where the models are asked for
    if asker.failed is not None:
        raise TargetError(
            f"{asker.base_url} is healthy, and its first real request went wrong: {asker.failed}; its log says why"
        )


def _hint(text: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return " - its certificate is not trusted here: --ca FILE names what to believe, --insecure checks nothing"
    if "ConnectError" in text:
        return " - is it running, and is that its port?"
    if "RemoteProtocolError" in text or "illegal" in text.lower():
        return " - what listens there does not speak HTTP: is that the server's port?"
    return " - its log says more; --wait-ready gives it more time"


def require(facts: Facts, requires: Sequence[str], attacks: Sequence[str], image_traffic: Sequence[str]) -> list[str]:
    """What the profile needs and the server lacks: errors where it makes the run impossible, else sentences to tell.

    Images and development endpoints are asked for by the profile's own traffic and attacks, so a server without them
    cannot be tested by it (TargetError). A mechanism that may be absent (drafts) makes the verdict unknown later.
    """
    dialect = DIALECTS[facts.dialect]
    if image_traffic and facts.images is False and "images" in requires:
        why = facts.sources.get("images", "")
        raise TargetError(
            f"the profile sends images (traffic {', '.join(image_traffic)}), and the model {facts.model} takes none "
            f"({why}): serve a multimodal model, or take the images out with --set"
        )
    for name in attacks:
        if name not in dialect.admin:
            raise TargetError(
                f"the attack {name} is unknown to {dialect.title}; it has {', '.join(sorted(dialect.admin)) or 'none'}"
            )
        since = dialect.admin[name].since
        if _is_before(facts.version, since):
            raise TargetError(
                f"the attack {name} came with {dialect.title} {since}; this server is {facts.version}: take it out "
                "of the profile"
            )
    gate = dialect.development_gate
    gated = [name for name in attacks if gate and dialect.admin[name].gate.startswith(gate)]
    if gated and facts.development_endpoints is False:
        raise TargetError(
            f"the attack {gated[0]} needs the server's development endpoints, which are off: {dialect.admin[gated[0]].gate}"
        )
    told = []
    if "speculative_decoding" in requires and facts.speculative_decoding is False:
        told.append("the server runs without speculative decoding, which this profile is about: a pass will be unknown")
    return told


def _is_before(version: str | None, since: str) -> bool:
    """Whether a version that the server itself told is an older one; `0.9 to 0.15`, found by its paths, is none."""
    mine, theirs = version_key(version), version_key(since)
    return mine is not None and theirs is not None and " " not in (version or "") and mine < theirs


async def refuse_to_disturb(asker: DiscoveryClient, dialect: Dialect, *, shared: bool, emit: Emit) -> None:
    """Look for 5 s whether others use the server (requests that are not ours); needs --shared then.

    Where a gauge may be old, what it says counts only once it must have been renewed.
    """
    running = next((m for m in dialect.metrics if m.ours == "requests_running"), None)
    if running is None or dialect.metrics_path is None:
        return
    names = "|".join(re.escape(n) for n in running.theirs)
    pattern = re.compile(rf"^(?:{names})(?:\{{[^}}]*\}})? ([0-9.e+]+)$", re.MULTILINE)
    busiest = 0.0
    begin = time.monotonic()
    until = begin + _OTHERS_S
    while time.monotonic() < until:
        page = await asker.ask("GET", dialect.metrics_path, admin=True)
        now = max((float(v) for v in pattern.findall(page.text)), default=0.0)
        if now and time.monotonic() - begin < dialect.metrics_refresh_s:
            until = max(until, begin + dialect.metrics_refresh_s + 1.0)  # the gauge may tell of those who have left
        else:
            busiest = max(busiest, now)
        if busiest and not shared:
            raise AuthorizationError(
                f"others use {asker.base_url} now ({busiest:g} requests running that are not ours): this run would "
                "disturb them. Give --shared if that is meant"
            )
        await asyncio.sleep(_OTHERS_POLL_S)
    text = f"{busiest:g} foreign requests running" if busiest else "nobody else used the server for 5 s"
    emit(row("others", ok=not busiest, text=text))


def row(name: str, *, ok: bool, text: str) -> PreflightRow:
    """A preflight row of the ledger."""
    return {"row": "preflight", "at_ns": time.monotonic_ns(), "name": name, "ok": ok, "text": text}
