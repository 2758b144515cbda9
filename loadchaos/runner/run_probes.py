"""Questions beside the load of one run, as its profile names them."""

from __future__ import annotations

import random
from collections.abc import Callable

from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.model import Facts, Row
from loadchaos.core.redact import Redactor
from loadchaos.profile.correctness import CorrectnessOptions
from loadchaos.profile.profile import Profile
from loadchaos.runner.server_under_test import ServerUnderTest
from loadchaos.server.monitor.base import ServerAccess
from loadchaos.server.probes.ask import Asker
from loadchaos.server.probes.parts.base import ProbePart
from loadchaos.server.probes.parts.cold_warm import ColdWarmPart
from loadchaos.server.probes.parts.keyed import KeyedPart
from loadchaos.server.probes.parts.reference import ReferencePart
from loadchaos.server.probes.parts.replicas import ReplicasPart
from loadchaos.server.probes.parts.streamed import StreamedPart
from loadchaos.server.probes.prober import Prober

MakePart = Callable[[CorrectnessOptions, Asker, random.Random, Callable[[], int]], ProbePart | None]


def _keyed(options: CorrectnessOptions, asker: Asker, rng: random.Random, _: Callable[[], int]) -> ProbePart | None:
    of = options.probes
    return None if of is None else KeyedPart(asker, rng, every_s=of.every, kinds=of.kinds)


def _replicas(options: CorrectnessOptions, asker: Asker, rng: random.Random, _: Callable[[], int]) -> ProbePart | None:
    of = options.replicas
    return None if of is None else ReplicasPart(asker, rng, every_s=of.every, n=of.n)


def _cold_warm(options: CorrectnessOptions, asker: Asker, rng: random.Random, _: Callable[[], int]) -> ProbePart | None:
    return None if options.cold_warm is None else ColdWarmPart(asker, rng, every_s=options.cold_warm.every)


def _streamed(options: CorrectnessOptions, asker: Asker, rng: random.Random, _: Callable[[], int]) -> ProbePart | None:
    return None if options.streamed is None else StreamedPart(asker, rng, every_s=options.streamed.every)


def _reference(
    options: CorrectnessOptions, asker: Asker, rng: random.Random, requests: Callable[[], int]
) -> ProbePart | None:
    share = 0.0 if options.alone_vs_load is None else options.alone_vs_load.share
    return ReferencePart(asker, rng, share=share, requests=requests)


PARTS: tuple[MakePart, ...] = (_reference, _keyed, _replicas, _cold_warm, _streamed)
"""All parts in the order in which the idle server is asked."""


class RunProbes:
    """The questions of one run; does nothing where the profile has none."""

    def __init__(self, profile: Profile, server: ServerUnderTest, record: EventRecorder, redactor: Redactor) -> None:
        self._profile, self._server, self._record, self._redactor = profile, server, record, redactor
        self._prober: Prober | None = None
        self._begun = False
        self._requests = 0

    def feed(self, row: Row) -> None:
        """Count the requests of the load."""
        self._requests += row.get("row") == "end"

    async def learn(self, facts: Facts, seed: int) -> list[str]:
        """Ask the idle server; returns notes for the user.

        The questions bypass our proxy, as the canary does.
        """
        options = self._profile.correctness
        if not options.model_fields_set:
            return []
        access = ServerAccess(self._server.target.headers, self._server.target.tls.context())
        asker = Asker(self._server.url, facts.model, self._record.event, self._redactor, access)
        rng = random.Random(f"questions {seed}")
        made = [make(options, asker, random.Random(rng.random()), lambda: self._requests) for make in PARTS]
        self._prober = Prober(asker, [part for part in made if part is not None])
        return await self._prober.learn()

    def start(self) -> None:
        """Ask beside the load, except while the server is down."""
        if self._prober is not None:
            self._begun = True
            self._prober.start(lambda: self._server.down)

    async def stop(self) -> None:
        """Ask no more: after the load the server has to become idle."""
        if self._prober is not None:
            await self._prober.stop()

    async def check(self) -> None:
        """Ask wrong answers again after the load, and end."""
        if self._prober is None:
            return
        if self._begun and not self._server.down:
            await self._prober.check()
        await self._prober.close()
