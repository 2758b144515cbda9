"""Questions beside the load of one run, as its profile names them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import Facts
from loadchaos.core.probe_names import IMAGE_KINDS
from loadchaos.core.redact import Redactor
from loadchaos.core.urls import CHAT_PATH
from loadchaos.profile.correctness import CorrectnessOptions
from loadchaos.profile.profile import Profile
from loadchaos.run.server_under_test import ServerUnderTest
from loadchaos.server.memory import ProbeMemory
from loadchaos.server.monitor.canary import IDLE_TIMES, Canary
from loadchaos.server.monitor.identity import ServerIdentity
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.parts.adapters import AdaptersPart
from loadchaos.server.probes.parts.base import ProbePart
from loadchaos.server.probes.parts.equal_prompts import ColdWarmPart, ReplicasPart, StreamedPart
from loadchaos.server.probes.parts.images import ImagesPart
from loadchaos.server.probes.parts.keyed import KeyedPart
from loadchaos.server.probes.parts.prefix_ladder import PrefixLadderPart
from loadchaos.server.probes.parts.reference import ReferencePart
from loadchaos.server.probes.prober import Prober


@dataclass(frozen=True)
class PartSetup:
    """Inputs from which the parts are made. `requests()`: sent by the load so far; `images`: the traffic has images and
    the model may take them; `memory`: what earlier runs on the server have learned.
    """

    options: CorrectnessOptions
    asker: RecordedAsker
    rng: random.Random
    requests: Callable[[], int]
    images: bool
    facts: Facts
    memory: ProbeMemory | None = None

    def parts(self) -> list[ProbePart]:
        """The parts that the profile asks for, in the order in which the idle server is asked."""
        of, asker = self.options, self.asker
        compared = [name for name in CorrectnessOptions.model_fields if name != "probes" and getattr(of, name)]
        rngs = [random.Random(self.rng.random()) for _ in range(8)]
        parts: list[ProbePart] = [
            ReferencePart(
                asker,
                rngs[0],
                share=0.0 if of.alone_vs_load is None else of.alone_vs_load.share,
                requests=self.requests,
                compared=compared,
                memory=self.memory,
            )
        ]
        if of.probes is not None:
            fits = self.images or "kinds" in of.probes.model_fields_set
            kinds = [kind for kind in of.probes.kinds if fits or kind not in IMAGE_KINDS]
            parts.append(KeyedPart(asker, rngs[1], every_s=of.probes.every, kinds=kinds))
        if of.replicas is not None:
            parts.append(ReplicasPart(asker, rngs[2], every_s=of.replicas.every, n=of.replicas.n))
        if of.cold_warm is not None:
            parts.append(ColdWarmPart(asker, rngs[3], every_s=of.cold_warm.every))
        if of.streamed is not None:
            parts.append(StreamedPart(asker, rngs[4], every_s=of.streamed.every))
        if of.images is not None and self.facts.images is not False:
            parts.append(ImagesPart(asker, rngs[5], every_s=of.images.every))
        if of.adapters is not None:
            adapters = self.facts.lora_adapters
            parts.append(AdaptersPart(asker, rngs[6], every_s=of.adapters.every, adapters=adapters))
        if (ladder := of.prefix_ladder) is not None:
            text = self.facts.text
            parts.append(PrefixLadderPart(asker, rngs[7], every_s=ladder.every, lengths=ladder.lengths, text=text))
        return parts


class RunProbes(RowFold):
    """The questions and canaries of one run; does nothing where the profile has none."""

    def __init__(self, profile: Profile, server: ServerUnderTest, record: EventRecorder, redactor: Redactor) -> None:
        self._profile, self._server, self._record, self._redactor = profile, server, record, redactor
        self._canary: Canary | None = None
        self._identity: ServerIdentity | None = None
        self._prober: Prober | None = None
        self._begun = False
        self._requests = 0

    def on_end(self, row: EndRow) -> None:  # noqa: ARG002 - it counts
        self._requests += 1

    async def learn_identity(self, facts: Facts) -> None:
        if self._server.target.kind == "external":
            self._identity = ServerIdentity(self._server.asker, facts, self._record.event)
            await self._identity.read()

    def prepare(self, facts: Facts, seed: int) -> int:
        """Make the questions; returns the most that the idle server will be asked. They are not those of an earlier run
        with the same seed: prompts and images that shall be new would be in the caches of the server.
        """
        asker, emit = self._server.asker, self._record.event
        url = self._server.url.rstrip("/") + facts.api.path(CHAT_PATH)
        if (canary := self._profile.watch.canary) is not None:
            self._canary = Canary(asker, url, facts.model, emit, self._redactor, every_s=canary.every)
        options = self._profile.correctness
        if options.model_fields_set:
            held = self._server.target.held
            memory = held.memory.probes if held is not None and held.memory is not None else None
            recorded = RecordedAsker(asker, url, facts.model, emit, self._redactor, memory)
            rng = random.Random(f"questions {seed} {self._record.folder.path.name}")
            images = facts.images is not False and any("images" in traffic.payload for traffic in self._profile.traffic)
            setup = PartSetup(options, recorded, rng, lambda: self._requests, images, facts, memory)
            self._prober = Prober(recorded, setup.parts(), memory)
        canaries = 0 if self._canary is None else 2 * IDLE_TIMES
        return canaries + (0 if self._prober is None else self._prober.idle_questions)

    async def learn_canary(self) -> None:
        if self._canary is not None:
            await self._canary.learn()

    async def learn(self, facts: Facts) -> list[str]:
        """Ask the idle server; returns notes for the user."""
        if self._prober is None:
            return []
        refused = self._profile.correctness.images is not None and facts.images is False
        notes = ["questions about images are not asked: the model takes none"] if refused else []
        return [*notes, *await self._prober.learn()]

    def start(self) -> None:
        self._begun = True
        for part in (self._canary, self._identity, self._prober):
            if part is not None:
                part.start(lambda: self._server.down)

    async def stop(self) -> None:
        """Ask no more: after the load the server has to become idle."""
        for part in (self._canary, self._identity, self._prober):
            if part is not None:
                await part.stop()

    async def check(self) -> None:
        if self._prober is not None and self._begun and not self._server.down:
            await self._prober.check()
