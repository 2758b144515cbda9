"""Before the load: start the server, open the eyes, ask what it is and whether the profile fits it; leaves plan.json.

Whatever makes the load impossible is raised: TargetError where the server is the trouble, OptionError where we are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial

import httpx

from loadchaos.chaos import AttackedReplica, AttackInjector, AttackTarget, RunProxy
from loadchaos.core.errors import TargetError
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.model import Facts
from loadchaos.core.progress import on_terminal
from loadchaos.core.redact import Redactor
from loadchaos.load import disk_space
from loadchaos.profile.profile import Profile
from loadchaos.runner import requirements
from loadchaos.runner.options import Options, drivers, local_tokenizer, planned_headers
from loadchaos.runner.server_under_test import DOWN, ServerUnderTest
from loadchaos.server.dialects import DIALECTS, Dialect
from loadchaos.server.discovery import calibrate, preflight
from loadchaos.server.discovery.server_config import configuration, flags_in_log

_LOOK_S = 0.1
_SHOW_S = 3.0
_EXTERNAL_READY_S = 5.0
_EMBEDDED_READY_S = 30.0
_DEATH_SHOWS_S = 3.0  # from a failed answer to the signs of a death
_LAST_WORDS_S = 6.0  # a dead vLLM's API server takes up to 5 s to exit, and says why meanwhile


class Preparation:
    """Everything between the first row and the load; `run` gives the attacks, ready to be started."""

    def __init__(
        self,
        profile: Profile,
        options: Options,
        patient: ServerUnderTest,
        record: EventRecorder,
        redactor: Redactor,
        say: Callable[[str], None],
    ) -> None:
        self._profile, self._options, self._patient = profile, options, patient
        self._record, self._redactor, self._say = record, redactor, say
        self._place = patient.place

    async def run(self) -> AttackInjector:
        """Server, watch, preflight, calibration, facts.json and plan.json."""
        space = disk_space.estimate(
            self._profile, self._options.seed, self._record.folder.path, self._options.duration_s
        )
        self._record.event(preflight.row("disk", ok=space.fits, text=space.told()))
        if not space.fits:
            self._say(f"note: {space.told()}")
        if self._place.kind != "external":
            self._say(await self._patient.launch(self._record))
        elif not self._place.server_log and not any(r.log for r in self._profile.target.replicas):
            self._say(
                "note: causes cannot be named: only a server's log tells why it died; --server-log says where it is"
            )
        await self._patient.watch(self._record)
        headers, tls = dict(self._place.headers), self._place.trust.context()
        async with httpx.AsyncClient(headers=headers, verify=tls, trust_env=False) as client:
            url = self._patient.url
            asker = calibrate.DiscoveryClient(client, url, self._place.admin_url or url)
            await preflight.wait_until_healthy(asker, self._ready_within_s(), self._patient.gone, self._say)
            signs = asyncio.create_task(self._show_questions(asker))
            try:
                attacks = await self._learn(asker)
            except TargetError:
                await self._refuse_the_dead(asker)
                raise
            finally:
                signs.cancel()
            await self._refuse_the_dead(asker)
            return attacks

    async def _show_questions(self, asker: calibrate.DiscoveryClient) -> None:
        """A slow server is asked for minutes: the person at the terminal sees that it goes on."""
        say, begin = on_terminal(self._say), time.monotonic()
        while say is not None:
            await asyncio.sleep(_SHOW_S)
            asked = asker.reads + asker.generations
            say(f"learning what the server is and how it counts: {asked} questions, {time.monotonic() - begin:.0f} s")

    def _ready_within_s(self) -> float:
        if self._options.wait_ready_s is not None:
            return self._options.wait_ready_s
        if self._place.kind == "external":
            return _EXTERNAL_READY_S
        launch = self._profile.target.launch
        return launch.ready_within if self._place.kind == "launched" and launch is not None else _EMBEDDED_READY_S

    async def _refuse_the_dead(self, asker: calibrate.DiscoveryClient) -> None:
        """A server that dies of the first questions is the target's trouble, whatever else it made us say."""
        if asker.failed:
            await self._while(lambda: not self._patient.down, _DEATH_SHOWS_S)
        if not self._patient.down:
            return
        await self._while(lambda: self._patient.down and self._patient.gone() is None, _LAST_WORDS_S)
        if self._patient.state not in DOWN:
            return
        said = f" ({asker.failed})" if asker.failed else ""
        gone = f": {why}" if (why := self._patient.gone()) else ""
        raise TargetError(
            f"the server died before the load, of the first questions it was asked{said}{gone}; its log says why"
        )

    async def _while(self, goes_on: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while goes_on() and time.monotonic() < deadline:  # noqa: ASYNC110 - states follow from time, too: no event tells
            await asyncio.sleep(_LOOK_S)

    async def _learn(self, asker: calibrate.DiscoveryClient) -> AttackInjector:
        """What the server is, whether the profile fits it, how it counts."""
        profile = self._profile
        folder = local_tokenizer(profile, self._options)
        wanted = requirements.calibration_request(profile, self._options.model, self._options.api_key_env, folder)
        head = await self._patient.read_head()
        facts = calibrate.with_log(await calibrate.identify_server(asker, wanted), head)
        if self._patient.launched is not None:
            await preflight.require_an_answer(asker, facts.model)
            self._patient.launched.ready()
        dialect = DIALECTS[facts.dialect].at(facts.version)
        await self._patient.watch(self._record, dialect)
        if self._place.kind == "external":
            await preflight.refuse_to_disturb(asker, dialect, shared=self._options.shared, emit=self._record.event)
        attacks = [a.admin for a in profile.attacks if a.admin is not None]
        facts, notes = await requirements.discover(asker, profile, facts, wanted, attacks)
        if told := facts.sources.get("tokenizer"):
            self._say(f"note: the tokenizer {told}")
            self._record.event(preflight.row("tokenizer", ok=True, text=told))
        for told in notes:
            self._say(f"note: {told}")
            self._record.event(preflight.row("requires", ok=False, text=told))
        for told in (*profile.notes(), *profile.warnings()):
            self._say(f"note: {told}")
            self._record.event(preflight.row("traffic", ok=True, text=told))
        self._record.event({"row": "facts", "at_ns": time.monotonic_ns(), "facts": facts.to_json()})
        self._say(facts_line(facts))
        await self._tell_configuration(asker, facts, head)
        await self._patient.learn(self._record, facts)
        path = await self._lay_path(dialect)
        self._write_plan(facts, None if path is None else path.address)
        return await self._aim(dialect, facts, path)

    async def _tell_configuration(self, asker: calibrate.DiscoveryClient, facts: Facts, head: str) -> None:
        """Its flags and its machine go into the record: whoever reads an incident asks for them first."""
        settings, system = await configuration(asker, facts)
        values = {name: value for name, (value, _) in settings.items()}
        clean = self._redactor.data
        self._record.event(
            {
                "row": "configuration",
                "at_ns": time.monotonic_ns(),
                "flags": clean(flags_in_log(head)),
                "settings": clean(values),
                "system": clean(dict(system)),
            }
        )

    async def _lay_path(self, dialect: Dialect) -> RunProxy | None:
        """The proxy that the profile's network attacks need; without such attacks there is none in the path."""
        if not any(a.network for a in self._profile.attacks):
            return None
        path = await self._patient.lay_path()
        added_s = await path.added_delay_s(dialect.health_path, self._place.trust.context())
        told = "its own delay is not known" if added_s is None else f"it adds {added_s * 1000:.1f} ms to an answer"
        text = f"requests pass {path.description} for the network attacks ({told}); probes go past it"
        self._say(f"note: {text}")
        self._record.event(preflight.row("network proxy", ok=True, text=text))
        return path

    async def _aim(self, dialect: Dialect, facts: Facts, path: RunProxy | None) -> AttackInjector:
        """The attacks, each of which can be done here: TargetError where one would signal a process nobody sees."""
        pid_of = self._patient.pid_of
        replicas = [
            AttackedReplica(name, url, partial(pid_of, name), path) for name, url in self._patient.replicas.items()
        ]
        attacks = AttackInjector(
            [a.spec() for a in self._profile.attacks],
            AttackTarget(dialect, replicas, self._place.headers, facts.version, self._place.trust.context()),
            self._record.event,
            self._redactor,
            self._options.seed,
        )
        for name, found in [one for kind in ("process", "engine", "host") for one in await attacks.preflight(kind)]:
            if found.ok is False:
                await attacks.stop()
                raise TargetError(f"the attack {name} cannot be done: {found.text}")
        for name, found in await attacks.preflight("admin"):
            if found.ok is False:
                self._say(f"note: the attack {name} will be refused: {found.text}")
        return attacks

    def _write_plan(self, facts: Facts, via: tuple[str, int] | None) -> None:
        """What the Locust workers read; they connect to `via` where something stands in the path."""
        folder = self._record.folder
        profile = self._profile.to_json()
        if "target" in profile:
            profile["target"] = self._redactor.data(profile["target"])  # the workers need none of it
        plan = {
            "profile": profile, "seed": self._options.seed, "base_url": self._patient.url, "via": via,
            "api_key_env": self._options.api_key_env, "headers": planned_headers(self._options),
            "folder": str(folder.path.resolve()), "workers": drivers(self._options),
            "tls": self._place.trust.to_json(),
            "resume": self._options.resume.to_json() if self._options.resume is not None else None,
        }  # fmt: skip
        self._record.keep(folder.facts, json.dumps(facts.to_json(), indent=1))
        self._record.keep(folder.plan, json.dumps(plan, indent=1))


def facts_line(facts: Facts) -> str:
    """What the server was found to be, for whoever watches the run begin."""
    parts = [f"{facts.dialect} {facts.version or '(version unknown)'}", f"model {facts.model}"]
    if facts.max_model_len:
        parts.append(f"context {facts.max_model_len}")
    if facts.image_tokens:
        parts.append("images " + ", ".join(f"{size} = {n} tokens" for size, n in facts.image_tokens.items()))
    elif facts.images is False:
        parts.append("takes no images")
    parts.append(f"text counted by {facts.text.source}" if facts.text else "text lengths are estimates")
    return "server: " + "; ".join(parts)
