"""Prepare the load: launch, monitor and identify the server, check that the profile fits, write plan.json. Raises
TargetError where the server is the cause, OptionError where our user is.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from loadchaos.chaos.authorization import Leave
from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.injector import AttackInjector, AttackTarget
from loadchaos.chaos.network import LocalProxy
from loadchaos.core import typed_json
from loadchaos.core.errors import TargetError
from loadchaos.core.field_changes import describe, renames
from loadchaos.core.ledger.rows import DiscoveryRow
from loadchaos.core.limits import DEATH_SHOWS_S, LAST_LINES_S
from loadchaos.core.model import Facts
from loadchaos.core.plugins import left_out
from loadchaos.core.progress import on_terminal
from loadchaos.core.units import describe_duration
from loadchaos.core.urls import unused_proxy
from loadchaos.load import disk_space
from loadchaos.profile.run_plan import RunPlan
from loadchaos.run import answer_baseline, compatibility, requirements
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.endpoint_check import api_paths
from loadchaos.run.last_question import LastQuestion
from loadchaos.run.options import local_tokenizer, planned_headers, prove_logs, worker_count
from loadchaos.run.ports import announced_ports, foreign_listener
from loadchaos.run.run_context import RunContext
from loadchaos.run.run_probes import RunProbes
from loadchaos.run.server_under_test import DOWN, ServerUnderTest
from loadchaos.run.start_failure import StuckStart, explained
from loadchaos.server.dialects import DIALECTS, Dialect
from loadchaos.server.dialects.gateways import HEALTH_PATH
from loadchaos.server.discovery import calibrate, preflight
from loadchaos.server.discovery.client import DiscoveryClient
from loadchaos.server.discovery.server_config import Configured, configuration, flags_in_log, with_configuration

_GUESSES = "prompt lengths are guesses: the server has no /tokenize (--tokenizer DIR makes them exact)"
_NO_METRICS = (
    "{url}/metrics does not answer with 200, so that queue, KV cache, preemptions and requests of others are not seen; "
    "behind a gateway, give the URL of the server itself as --admin-url"
)
_POLL_S = 0.1
_PROGRESS_S = 3.0
_COLD_QUESTIONS = 3
"""The first questions are not timed: a server may compile, and fill its caches."""
_TIMED_QUESTIONS = 7
_EXTERNAL_READY_S = 5.0
_EMBEDDED_READY_S = 30.0
_LOG_READ_S = 1.5  # until the log lines of a failed request have been read: they are not of the load
_OWN_PORT_S = 5.0  # a server that cannot bind its port exits within this time
_COMMAND_CHARS = 80


class Preparation:
    """Everything between the first row and the load."""

    def __init__(
        self, context: RunContext, server: ServerUnderTest, probes: RunProbes, last_question: LastQuestion
    ) -> None:
        self._profile, self._options, self._target = context.profile, context.options, context.target
        self._record, self._redactor, self._print = context.record, context.record.redactor, context.print_line
        self._server, self._probes, self._last_question = server, probes, last_question
        self._questions, self._asked_since_s = 0, 0.0
        self._memory = self._target.held.memory if self._target.held is not None else None

    async def run(self) -> AttackInjector:
        """Prepare the load and write facts.json and plan.json. Returns the attacks, ready to be started."""
        if self._options.others is None:
            self._check_disk()
        await self._start_server()
        await self._server.start_monitor()
        headers, tls = dict(self._target.headers), self._target.tls.context()
        urls = self._server.url, self._target.admin_url
        async with discovery_client(*urls, headers=headers, tls=tls, model=self._options.model) as client:
            client.api = api_paths(self._profile)
            if (proxy := unused_proxy(self._server.url)) is not None:
                self._print(f"note: {proxy} is set and not used: a proxy would be measured with the server")
            await self._wait_until_healthy(client)
            has_log = self._target.server_log or any(r.log for r in self._profile.target.replicas)
            if self._target.kind == "external" and not has_log:
                self._print("note: no --server-log given: without the server's log, causes of failures cannot be named")
            client.memory = self._memory.discovery if self._memory is not None else None
            progress = asyncio.create_task(self._print_progress(client))
            try:
                attacks = await self._discover(client)
            except TargetError:
                await self._refuse_dead_server(client)
                raise
            finally:
                progress.cancel()
                row: DiscoveryRow = {
                    "row": "discovery",
                    "at_ns": time.monotonic_ns(),
                    "reads": client.reads,
                    "generations": client.generations,
                    "remembered": client.remembered,
                }
                self._record.event(row)
            await self._refuse_dead_server(client)
            if self._options.wait_ready_s is not None:  # a log that was not there before the server
                await asyncio.to_thread(prove_logs, self._profile, self._target.server_log, may_appear=False)
            if client.failures:
                await asyncio.sleep(_LOG_READ_S)
            return attacks

    def _check_disk(self) -> None:
        space = disk_space.estimate(
            self._profile, self._options.seed, self._record.folder.path, self._options.duration_s
        )
        self._record.event(preflight.row("disk", ok=space.fits, text=space.describe()))
        if not space.fits:
            self._print(f"note: {space.describe()}")

    async def _start_server(self) -> None:
        if self._target.kind != "external":
            self._print(await self._server.launch())

    async def _print_progress(self, client: DiscoveryClient) -> None:
        """Tell how long the questions take at most, by some of them; on a terminal, how far it has come."""
        print_line, begin_s, printed_s, told = on_terminal(self._print), time.monotonic(), 0.0, False
        warm: tuple[int, float] | None = None
        while True:
            await asyncio.sleep(_POLL_S)
            now_s, asked = time.monotonic(), self._server.asker.asked
            if warm is None and asked > _COLD_QUESTIONS:
                warm = asked, now_s
            if self._questions and not told and warm is not None and asked >= warm[0] + _TIMED_QUESTIONS:
                told, n, took_s = True, asked - warm[0], now_s - warm[1]
                most_s = math.ceil(took_s / n * max(0, self._questions - asked))
                self._print(
                    f"the questions take at most about {describe_duration(most_s)} more: {n} of them took {took_s:.1f} s"
                )
            elif print_line is not None and now_s - max(begin_s, printed_s) > _PROGRESS_S:
                printed_s, sent = now_s, client.reads + client.generations
                asking = f"asked {asked} of at most {self._questions} questions"
                what = asking if self._questions else f"identifying the server: {sent} requests"
                print_line(f"{what} in {now_s - (self._asked_since_s or begin_s):.0f} s")

    async def _wait_until_healthy(self, client: DiscoveryClient) -> None:
        launched, log = self._server.launched, self._record.folder.server_log
        stuck = StuckStart(log)

        def ended() -> str | None:
            return None if launched is None else self._server.exit_status() or stuck.reason()

        try:
            await preflight.wait_until_healthy(client, self._ready_within_s(), ended, self._print, self._launched_ports)
        except TargetError as e:
            if launched is None or launched.pid is None:
                raise
            if launched.exit.done():
                await launched.wait_recorded()
            raise TargetError(f"{explained(str(e), log).removesuffix('.')}; see its log {log}") from None
        await self._refuse_foreign_server()
        leave = self._server.leave = Leave(
            self._profile.dangers(), self._options.authorize, launched=self._target.kind != "external"
        )
        for url in dict.fromkeys((self._server.url, *self._server.replicas.values())):
            leave.check(url)  # a server that we launched may be a tunnel to one that we did not

    def _launched_ports(self) -> Sequence[int]:
        launched = self._server.launched
        if launched is None or launched.pid is None:
            return ()
        return announced_ports(launched.pid, self._record.folder.server_log)

    async def _refuse_foreign_server(self) -> None:
        """Raise TargetError where another program has the server's port. A container's server is no child of ours: a
        note.
        """
        launched = self._server.launched
        if launched is None or self._target.held is not None:
            return
        url, deadline_s = self._server.url, time.monotonic() + _OWN_PORT_S
        while launched.pid is not None and (other := foreign_listener(url, launched.pid)) is not None:
            who = f"process {other.pid} ({other.command[:_COMMAND_CHARS]}), which the launch command did not start,"
            if launched.exit.done():
                await launched.wait_recorded()
                raise TargetError(
                    f"{who} answers at {url}, and the launched server has ended: {self._server.exit_status()}; "
                    "stop that process, or launch the server on another --port; "
                    f"see its log {self._record.folder.server_log}"
                )
            if time.monotonic() > deadline_s:
                self._print(f"note: {who} answers at {url}: it is the server under test")
                return
            await asyncio.sleep(_POLL_S)

    def _ready_within_s(self) -> float:
        if self._options.wait_ready_s is not None:
            return self._options.wait_ready_s
        if self._target.kind == "external":
            return _EXTERNAL_READY_S
        launch = self._profile.target.launch
        return launch.ready_within if self._target.kind == "launched" and launch is not None else _EMBEDDED_READY_S

    async def _refuse_dead_server(self, client: DiscoveryClient) -> None:
        """Raise TargetError for a server that died of the first requests. This error goes before any other one."""
        if client.failed:
            await self._while(lambda: not self._server.down, DEATH_SHOWS_S)
        if not self._server.down:
            return
        await self._while(lambda: self._server.dying, LAST_LINES_S)
        if self._server.state not in DOWN:
            return
        request = f" ({client.failed})" if client.failed else ""
        reason = f": {why}" if (why := self._server.exit_reason()) else ""
        raise TargetError(
            f"the server died before the load, during the first requests{request}{reason}; its log says why"
        )

    async def _while(self, condition: Callable[[], bool], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while condition() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - states follow from time, too: there is no event
            await asyncio.sleep(_POLL_S)

    async def _discover(self, client: DiscoveryClient) -> AttackInjector:
        profile = self._profile
        tokenizer = local_tokenizer(profile, self._options)
        request = requirements.calibration_request(profile, self._options.model, self._options.api_key_env, tokenizer)
        head = await self._server.read_log_head()
        facts = calibrate.with_log(await calibrate.identify_server(client, request), head)
        if self._memory is not None:
            self._memory.identified(facts)
        if self._server.launched is not None:
            await preflight.require_first_answer(client, facts.model)
            self._server.launched.ready()
        dialect = DIALECTS[facts.dialect].at(facts.version)
        self._server.identified(dialect, own_pages=bool(facts.own_pages))
        await self._server.start_monitor(dialect)
        others = self._options.others
        if self._target.kind == "external" and others is None:
            await preflight.refuse_to_disturb(
                client, dialect, shared=self._options.shared, emit=self._record.event, say=self._print
            )
        admin_attacks = [a.admin for a in profile.attacks if a.admin is not None]
        settings, system = await configuration(client, facts)
        facts = with_configuration(facts, settings)
        notes = preflight.require(facts, (), admin_attacks, ())
        if others is None:
            facts, notes = await requirements.discover(client, profile, facts, request, admin_attacks)
            self._server.asker.changes = renames(facts.field_changes)
            compatibility.require_room(profile, facts, self._options.seed)
        if tokenizer_note := facts.sources.get("tokenizer"):
            self._note("tokenizer", f"the tokenizer {tokenizer_note}", text=tokenizer_note)
        for note in notes:
            self._note("requires", note, ok=False)
        for error in left_out():
            self._note("plugin", str(error), ok=False)
        for note in (*profile.notes(), *profile.warnings()) if others is None else ():
            self._note("traffic", note)
        self._record.event({"row": "facts", "at_ns": time.monotonic_ns(), "facts": typed_json.to_json(facts)})
        self._print(facts_line(facts, watched=others is not None))
        if facts.metrics is False and self._target.kind == "external":
            self._print(f"note: {_NO_METRICS.format(url=facts.admin_url)}")
        self._record_configuration(settings, system, head)
        await self._probes.learn_identity(facts)
        if self._options.questions:
            await self._ask_questions(client, facts)
        self._last_question.learn(facts)
        proxy = await self._open_proxy(client.health_path or HEALTH_PATH)
        self._write_plan(facts, None if proxy is None else proxy.address)
        return await self._attack_injector(dialect, facts, proxy)

    async def _ask_questions(self, client: DiscoveryClient, facts: Facts) -> None:
        """Ask the idle server what it is asked beside the load, too: its answers are the reference."""
        profile, asker, seed = self._profile, self._server.asker, self._options.seed
        self._questions = self._probes.prepare(facts, seed) + answer_baseline.most_questions(profile)
        if self._questions:
            self._asked_since_s = time.monotonic()
            self._print(f"asking at most {self._questions} questions before the load (--no-questions leaves them out)")
        await self._probes.learn_canary()
        if answer_baseline.is_wanted(profile) and await answer_baseline.learn(
            asker, self._server.url, profile, facts, self._record.event, seed=seed
        ):
            await self._restart_dead_server(client)
        for note in await self._probes.learn(facts):
            self._note("correctness", note)

    async def _restart_dead_server(self, client: DiscoveryClient) -> None:
        """Restart a server that died of a request to the idle server, where the profile restarts dead servers."""
        if self._profile.target.on_death.policy != "restart" or self._server.launched is None:
            return
        await self._while(lambda: not self._server.down, DEATH_SHOWS_S)
        if not self._server.down:
            return
        await self._while(lambda: self._server.dying, LAST_LINES_S)
        self._print("note: the server died of a request like those of the load, before the load; it is started again")
        self._print(await self._server.launch())
        await self._wait_until_healthy(client)
        await self._while(lambda: self._server.down, DEATH_SHOWS_S)

    def _note(self, check: str, line: str, *, text: str | None = None, ok: bool = True) -> None:
        self._print(f"note: {line}")
        self._record.event(preflight.row(check, ok=ok, text=line if text is None else text))

    def _record_configuration(self, settings: Configured, system: Mapping[str, str], head: str) -> None:
        """Record the server's flags, settings and machine. A reader of an incident needs them first."""
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

    async def _open_proxy(self, health_path: str) -> LocalProxy | None:
        if not any(a.network for a in self._profile.attacks):
            return None
        proxy = await self._server.open_proxy()
        delay_s = await proxy.added_delay_s(health_path, self._target.tls.context())
        delay = "added delay unknown" if delay_s is None else f"added delay {delay_s * 1000:.1f} ms"
        self._note("network proxy", f"requests go through a proxy for network attacks ({delay}); probes bypass it")
        return proxy

    async def _attack_injector(self, dialect: Dialect, facts: Facts, proxy: LocalProxy | None) -> AttackInjector:
        """Raises TargetError where an attack cannot be done."""
        pid_of = self._server.pid_of
        replicas = [
            AttackedReplica(name, url, partial(pid_of, name), proxy) for name, url in self._server.replicas.items()
        ]
        tls = self._target.tls.context()
        assert self._server.leave is not None
        injector = AttackInjector(
            [a.spec() for a in self._profile.attacks],
            AttackTarget(dialect, replicas, self._target.headers, facts.version, tls, self._server.leave.refusal),
            self._record.event,
            self._redactor,
            self._options.seed,
        )
        for name, found in [one for kind in ("process", "engine", "host") for one in await injector.preflight(kind)]:
            if found.ok is False:
                await injector.stop()
                raise TargetError(f"the attack {name} cannot be done: {found.text}")
        for name, found in await injector.preflight("admin"):
            if found.ok is False:
                self._print(f"note: the server will refuse the attack {name}: {found.text}")
        return injector

    def _write_plan(self, facts: Facts, via: tuple[str, int] | None) -> None:
        """Write plan.json and facts.json for the Locust workers. They connect to the proxy `via` if there is one."""
        folder = self._record.folder
        self._record.keep(folder.facts, json.dumps(typed_json.to_json(facts), indent=1))
        if self._options.others is not None:
            return  # requests of others are not built from a plan
        profile = self._profile.to_json()
        if "target" in profile:
            profile["target"] = self._redactor.data(profile["target"])  # the workers do not need it
        options = self._options
        plan = RunPlan(
            profile=profile,
            seed=options.seed,
            base_url=self._server.url,
            via=via,
            api_key_env=options.api_key_env,
            headers=planned_headers(options),
            folder=str(folder.path.resolve()),
            workers=worker_count(options),
            tls=self._target.tls,
            resume=options.resume,
        )
        self._record.keep(folder.plan, json.dumps(typed_json.to_json(plan), indent=1))


def facts_line(facts: Facts, *, watched: bool = False) -> str:
    """Describe a server. Of one that is `watched`, nothing is measured by requests."""
    parts = [f"{facts.dialect} {facts.version or '(version unknown)'}", f"model {facts.model}"]
    if watched:
        return "server: " + "; ".join(parts)
    if facts.max_model_len:
        parts.append(f"context {facts.max_model_len} tokens")
    if facts.image_tokens:
        parts.append("images " + ", ".join(f"{size} = {n} tokens" for size, n in facts.image_tokens.items()))
    elif facts.images is False:
        parts.append("no image input")
    if facts.field_changes:
        parts.append(f"it is sent {describe(facts.field_changes)}, as it asked")
    source = facts.text.source if facts.text else "guess"
    parts.append(_GUESSES if source == "guess" else f"text tokens counted by {source}")
    return "server: " + "; ".join(parts)
