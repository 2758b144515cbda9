"""One run, told in order: ledger, server, watch, preflight, load and attacks, the end, the verdict.

This process is asyncio and does only what must not wait: it never formats, classifies or renders. The load runs in the
Locust child, telling in the follower; both may die without taking the record with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadchaos import __version__, calibrate, preflight
from loadchaos.attacks import Attacks, Replica, authority
from loadchaos.children import Follower, Locust
from loadchaos.dialects import DIALECTS
from loadchaos.errors import LoadchaosError, OptionError
from loadchaos.follow import conclude
from loadchaos.ledger import RunFolder, Tail
from loadchaos.model import Facts, Row
from loadchaos.patient import Patient, Place
from loadchaos.plan.profile import Profile
from loadchaos.record import Record, create_folder
from loadchaos.redact import Redactor
from loadchaos.watch.logs import read_spec

_LOOP_S = 0.1
_SYNC_S = 1.0
_FOLLOWER_LIMIT_S = 10.0
_DRAIN_GRACE_S = 5.0
_DEATH_SETTLE_S = 6.0  # a dead vLLM's API server takes up to 5 s to exit, and says why meanwhile
_WAIT_FOR_RETURN_S = 60.0
_EXTERNAL_READY_S = 5.0
_EMBEDDED_READY_S = 30.0
_MOST_RESTARTS = 20


@dataclass(frozen=True)
class Options:
    """What the command line adds to a profile; texts are as the user gave them."""

    target: str | None = None
    admin_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    server_log: Sequence[str] = ()
    out: Path = Path("runs")
    seed: int = 0
    duration_s: float | None = None
    authorize: Sequence[str] = ()
    shared: bool = False
    wait_ready_s: float | None = None
    embedded: bool = False
    exporter_port: int | None = None
    live: bool = True
    processes: int = 1
    argv: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """What the command line needs to end: the exit code, the verdict (None: nothing was judged), where all of it lies."""

    exit_code: int
    verdict: Mapping[str, Any] | None
    folder: RunFolder
    error: str | None = None


def say(text: str) -> None:
    """A line for the person who waits, before and after the live view."""
    print(text, file=sys.stderr, flush=True)


async def run(profile: Profile, options: Options) -> Result:
    """Run a profile to its end. Raises LoadchaosError for what is wrong before a run folder exists."""
    kind = target_kind(profile, options)
    url = calibrate.parse_target(options.target) if options.target is not None else None
    admin_url = calibrate.parse_target(options.admin_url) if options.admin_url else None
    if url is not None:
        authority.check(admin_url or url, profile.harms(), options.authorize)
    for spec in options.server_log:
        read_spec(spec)
    place = Place(kind, url, admin_url, options.server_log, request_headers(options))
    folder = create_folder(options.out, profile.name)
    return await _Run(profile, options, place, folder).go()


def target_kind(profile: Profile, options: Options) -> str:
    """embedded, launched or external; the embedded server only where neither a target nor a command is given."""
    if options.target is not None and options.embedded:
        raise OptionError("--target and --embedded exclude each other: which server is meant?")
    if options.target is not None:
        return "external"
    if profile.target.launch is not None and not options.embedded:
        return "launched"
    if profile.target.embedded is None:
        raise OptionError(f"{profile.name} needs a server: give --target URL (the profile has no embedded one)")
    if os.environ.get("CI") == "true" and not options.embedded:
        raise OptionError("under CI=true the embedded server runs only when asked for: --embedded, or --target URL")
    return "embedded"


def request_headers(options: Options) -> dict[str, str]:
    """Headers with their values from the environment; a variable that is missing is said before anything exists."""
    headers = {}
    for name, value in options.headers.items():
        headers[name] = _variable(value[4:], f"--header {name}={value}") if value.startswith("env:") else value
    if options.api_key_env is not None:
        key = _variable(options.api_key_env, f"--api-key-env {options.api_key_env}")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _variable(name: str, option: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise OptionError(f"{option}: the variable {name} is not set")
    return value


class _Run:
    """The state of one run; `go` tells it in order."""

    def __init__(self, profile: Profile, options: Options, place: Place, folder: RunFolder) -> None:
        self._profile, self._options, self._place = profile, options, place
        self.folder = folder
        self._redactor = Redactor.from_environment(os.environ)
        for value in place.headers.values():
            self._redactor.add(value)
        self._record = Record(folder, self._feed)
        self._patient = Patient(profile, place, folder.path, self._redactor)
        self._tails: dict[str, Tail] = {}
        self._attacks: Attacks | None = None
        self._locust = Locust(folder, self._record.event)
        self._follower = Follower(folder)
        self._interrupts: list[int] = []
        self._paused = False
        self._down_since: float | None = None
        self._synced = 0.0
        self._loading = False
        self._sent_load = False
        self._shortened = False
        self._error: LoadchaosError | None = None

    # --- told in order --------------------------------------------------------------------------------------------------

    async def go(self) -> Result:
        """Everything from the first row to the verdict."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        profile, options = self._profile, self._options
        self._record.run(
            "begin", profile=profile.name, argv=self._redactor.argv(list(options.argv)), version=__version__,
            target={"kind": self._place.kind, "url": self._place.url}, seed=options.seed,
            terms=profile.terms(options.seed).to_json(),
        )  # fmt: skip
        self.folder.profile.write_text(self._redactor.text(profile.to_yaml()))
        try:
            if await self._unless_interrupted(self._prepare()):
                await self._load()
        except LoadchaosError as e:
            self._error = e
        finally:
            await self._end()
        return self._conclude()

    async def _unless_interrupted(self, work_to_do: Any) -> bool:
        """Wait for a part that takes its time; False when the user ended the run meanwhile."""
        work = asyncio.ensure_future(work_to_do)
        while not work.done():
            await asyncio.wait([work], timeout=_LOOP_S)
            self._housekeeping()
            if self._interrupts:
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError, LoadchaosError):
                    await work
                return False
        await work
        return True

    async def _prepare(self) -> None:
        """Server, watch, preflight, calibration; leaves facts.json and plan.json."""
        if self._place.kind != "external":
            say(await self._patient.launch(self._record))
        elif not self._place.server_log and not any(r.log for r in self._profile.target.replicas):
            say("note: without --server-log causes cannot be named: a server tells nobody but its log why it died")
        await self._patient.watch(self._record)
        within_s = self._options.wait_ready_s
        if within_s is None:
            within_s = _EXTERNAL_READY_S if self._place.kind == "external" else self._ready_within_s()
        async with httpx.AsyncClient(headers=dict(self._place.headers), trust_env=False) as client:
            url = self._patient.url
            asker = calibrate.Asker(client, url, self._place.admin_url or url)
            await preflight.wait_until_healthy(asker, within_s, self._patient.gone, say)
            if self._patient.launched is not None:
                self._patient.launched.ready()
            await self._learn(asker)

    async def _learn(self, asker: calibrate.Asker) -> None:
        """What the server is, whether the profile fits it, how it counts."""
        profile = self._profile
        sizes, most_images = profile.image_sizes()
        wanted = calibrate.Wanted(
            image_sizes=sizes, images_per_request=most_images, dialect=profile.target.dialect, model=self._options.model,
            api_key_env=self._options.api_key_env,
        )  # fmt: skip
        facts = await calibrate.look(asker, wanted)
        dialect = DIALECTS[facts.dialect].at(facts.version)
        await self._patient.watch(self._record, dialect)
        if self._place.kind == "external":
            await preflight.refuse_to_disturb(asker, dialect, shared=self._options.shared, emit=self._record.event)
        attacks = [a.operation for a in profile.attacks]
        preflight.require(facts, profile.requires, attacks, ())
        facts = await calibrate.calibrate(asker, facts, wanted)
        image_traffic = [t.name for t in profile.traffic if "images" in t.payload]
        for told in preflight.require(facts, profile.requires, attacks, image_traffic):
            say(f"note: {told}")
            self._record.event(preflight.row("requires", ok=False, text=told))
        self._record.event({"row": "facts", "at_ns": time.monotonic_ns(), "facts": facts.to_json()})
        say(_facts_line(facts))
        self._write_plan(facts)
        specs = [a.spec() for a in profile.attacks]
        self._attacks = Attacks(
            specs, dialect, [Replica(name, url) for name, url in self._patient.replicas.items()], self._record.event,
            self._redactor, headers=self._place.headers, seed=self._options.seed, version=facts.version,
        )  # fmt: skip

    def _write_plan(self, facts: Facts) -> None:
        """What the Locust workers read."""
        plan = {
            "profile": self._profile.to_json(), "seed": self._options.seed, "base_url": self._patient.url,
            "api_key_env": self._options.api_key_env, "headers": dict(self._options.headers),
            "folder": str(self.folder.path.resolve()), "workers": self._options.processes,
        }  # fmt: skip
        self.folder.facts.write_text(json.dumps(facts.to_json(), indent=1))
        self.folder.plan.write_text(json.dumps(plan, indent=1))

    async def _load(self) -> None:
        """Drive and attack until Locust is done or somebody ends it."""
        assert self._attacks is not None
        self._loading = self._sent_load = True
        self._record.run("load_begin")
        await self._follower.begin(self._options.exporter_port, live=self._options.live)
        await self._locust.begin(self._options.processes)
        await self._attacks.start()
        begin = time.monotonic()
        stopping_since: float | None = None
        while self._locust.alive:
            await asyncio.sleep(_LOOP_S)
            self._housekeeping()
            await self._restart_if_due()
            now = time.monotonic()
            if stopping_since is None and (why := self._why_stop(now - begin)):
                stopping_since = now
                self._record.control("stop", why)
                await self._attacks.stop()
            # A Locust that does not hear its control file is ended by signal; its begin rows stay as `unfinished`.
            if stopping_since is not None and now - stopping_since > _DRAIN_GRACE_S + 3.0:
                await self._locust.end(3.0)
            if len(self._interrupts) > 1:
                self._locust.kill()
        self._locust.ended()
        self._loading = False

    async def _end(self) -> None:
        """Whatever happened: undo attacks, stop what we started, let the follower read to the end."""
        self._loading = False
        if self._attacks is not None:
            await self._attacks.stop()
        if self._sent_load:
            self._record.run("load_end", shortened=self._shortened)
            await self._settle()
        if self._locust.alive:
            await self._locust.end(_DRAIN_GRACE_S)
            self._locust.ended()
        self._read_requests()
        await self._patient.stop(at_once=len(self._interrupts) > 1)
        self._record.run("end", **self._how_it_ended())
        self._record.sync()
        self._record.close()
        if await self._follower.wait(_FOLLOWER_LIMIT_S) is None:
            self._follower.kill()
            await self._follower.wait(2.0)

    def _how_it_ended(self) -> dict[str, Any]:
        end: dict[str, Any] = {}
        if self._interrupts:
            end = {"exit_code": 128 + self._interrupts[0], "why": signal.Signals(self._interrupts[0]).name}
        elif self._error is not None:
            end = {"exit_code": self._error.exit_code, "why": str(self._error)}
        if self._record.lost:
            end["ledger_lost"] = self._record.lost
        return end

    def _conclude(self) -> Result:
        """Judge the finished ledger once; that verdict counts."""
        error = str(self._error) if self._error else None
        try:
            verdict = conclude(self.folder)
        except LoadchaosError as e:
            return Result(e.exit_code, None, self.folder, error or str(e))
        return Result(int(verdict["exit_code"]), verdict, self.folder, error)

    # --- the loop ---------------------------------------------------------------------------------------------------------

    def _housekeeping(self) -> None:
        self._read_requests()
        for change in self._patient.tick():
            self._record.event(change)
        if self._loading:
            self._gate()
        now = time.monotonic()
        if now - self._synced > _SYNC_S:
            self._synced = now
            self._record.sync()

    def _feed(self, row: Row) -> None:
        """Every row we write is a sign of the server's state, too; state rows themselves are none."""
        if row.get("row") == "state":
            return
        for change in self._patient.feed(row):
            self._record.event(change)

    def _read_requests(self) -> None:
        """The workers' newest rows: our own tokens arriving are the first sign of the server's progress."""
        for path in self.folder.request_files():
            for row in self._tails.setdefault(path.name, Tail(path)).rows():
                self._feed({**row, "file": path.name})  # heartbeats are a worker's: the file says whose

    def _gate(self) -> None:
        """Pause the load and the attacks while the server is down, go on when it is back."""
        if self._patient.down == self._paused:
            return
        self._paused = not self._paused
        self._down_since = time.monotonic() if self._paused else None
        why = f"server {self._patient.state}"
        self._record.control("pause" if self._paused else "resume", why)
        self._record.event({"row": "gate", "at_ns": time.monotonic_ns(), "open": not self._paused, "why": why})
        if self._attacks is not None:
            (self._attacks.pause if self._paused else self._attacks.resume)()

    async def _restart_if_due(self) -> None:
        if self._profile.target.on_death != "restart" or self._patient.gone() is None:
            return
        if self._patient.launches <= _MOST_RESTARTS and not self._interrupts:
            await self._patient.launch(self._record)

    def _why_stop(self, loaded_s: float) -> str | None:
        """Why the load has to end now, None while it may go on."""
        if self._interrupts:
            return "interrupted"
        if self._record.lost:
            return f"the ledger cannot be written: {self._record.lost}"
        if self._options.duration_s is not None and loaded_s > self._options.duration_s:
            self._shortened = True
            return "the duration asked for is over"
        return self._why_not_wait()

    def _why_not_wait(self) -> str | None:
        """Whether a server that is down is worth waiting for, by the profile and by who could start it again."""
        if self._down_since is None:
            return None
        policy = self._profile.target.on_death
        if policy == "stop" and self._patient.state in ("dead", "terminated"):
            return "the server died"
        if policy == "wait" and self._patient.gone() is not None:
            return "the server died, and nobody starts it again"
        down_s = time.monotonic() - self._down_since
        if down_s > max(_WAIT_FOR_RETURN_S, self._profile.recovers_within_s()):
            return f"the server did not come back within {down_s:.0f} s"
        return None

    async def _settle(self) -> None:
        """A server that dies needs some seconds to say why and to exit; its log is the only source of a cause."""
        deadline = time.monotonic() + _DEATH_SETTLE_S
        while self._patient.down and time.monotonic() < deadline and len(self._interrupts) < 2:
            if self._patient.gone() is not None:
                break
            await asyncio.sleep(_LOOP_S)
            self._housekeeping()

    # --- small ------------------------------------------------------------------------------------------------------------

    def _ready_within_s(self) -> float:
        launch = self._profile.target.launch
        return launch.ready_within if self._place.kind == "launched" and launch is not None else _EMBEDDED_READY_S

    def _interrupt(self, number: int) -> None:
        self._interrupts.append(number)
        self._record.run("interrupted", signal=signal.Signals(number).name)
        say("ending in order; again to end at once" if len(self._interrupts) == 1 else "ending at once")


def _facts_line(facts: Facts) -> str:
    parts = [f"{facts.dialect} {facts.version or '(version unknown)'}", f"model {facts.model}"]
    if facts.max_model_len:
        parts.append(f"context {facts.max_model_len}")
    if facts.image_tokens:
        parts.append("images " + ", ".join(f"{size} = {n} tokens" for size, n in facts.image_tokens.items()))
    parts.append(f"text counted by {facts.text.source}" if facts.text else "text lengths are estimates")
    return "server: " + "; ".join(parts)
