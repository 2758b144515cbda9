"""Questions beside the load of one run, as its profile names them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.model import Facts, Row
from loadchaos.core.probe_names import IMAGE_KINDS
from loadchaos.core.redact import Redactor
from loadchaos.profile.correctness import CorrectnessOptions
from loadchaos.profile.profile import Profile
from loadchaos.run.server_under_test import ServerUnderTest
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.memory import ProbeMemory
from loadchaos.server.probes.parts.adapters import AdaptersPart
from loadchaos.server.probes.parts.base import ProbePart
from loadchaos.server.probes.parts.cold_warm import ColdWarmPart
from loadchaos.server.probes.parts.images import ImagesPart
from loadchaos.server.probes.parts.keyed import KeyedPart
from loadchaos.server.probes.parts.prefix_ladder import PrefixLadderPart
from loadchaos.server.probes.parts.reference import ReferencePart
from loadchaos.server.probes.parts.replicas import ReplicasPart
from loadchaos.server.probes.parts.streamed import StreamedPart
from loadchaos.server.probes.prober import Prober


@dataclass(frozen=True)
class PartSetup:
    """Inputs from which a part is made.

    Args:
        options: `correctness` of the profile.
        asker: where it asks.
        rng: random generator of its own.
        requests: returns the number of requests that the load has sent.
        images: True if the traffic has images, and the model is not known to take none.
        facts: what is known of the server.
        memory: what earlier runs on the server have learned; None: each run asks anew.
    """

    options: CorrectnessOptions
    asker: RecordedAsker
    rng: random.Random
    requests: Callable[[], int]
    images: bool
    facts: Facts
    memory: ProbeMemory | None = None


def _keyed(setup: PartSetup) -> ProbePart | None:
    of = setup.options.probes
    if of is None:
        return None
    fits = setup.images or "kinds" in of.model_fields_set
    kinds = [kind for kind in of.kinds if fits or kind not in IMAGE_KINDS]
    return KeyedPart(setup.asker, setup.rng, every_s=of.every, kinds=kinds)


def _replicas(setup: PartSetup) -> ProbePart | None:
    of = setup.options.replicas
    return None if of is None else ReplicasPart(setup.asker, setup.rng, every_s=of.every, n=of.n)


def _cold_warm(setup: PartSetup) -> ProbePart | None:
    of = setup.options.cold_warm
    return None if of is None else ColdWarmPart(setup.asker, setup.rng, every_s=of.every)


def _streamed(setup: PartSetup) -> ProbePart | None:
    of = setup.options.streamed
    return None if of is None else StreamedPart(setup.asker, setup.rng, every_s=of.every)


def _images(setup: PartSetup) -> ProbePart | None:
    of = None if setup.facts.images is False else setup.options.images
    return None if of is None else ImagesPart(setup.asker, setup.rng, every_s=of.every)


def _reference(setup: PartSetup) -> ProbePart | None:
    of = setup.options.alone_vs_load
    compared = [name for name in CorrectnessOptions.model_fields if name != "probes" and getattr(setup.options, name)]
    share = 0.0 if of is None else of.share
    return ReferencePart(
        setup.asker, setup.rng, share=share, requests=setup.requests, compared=compared, memory=setup.memory
    )


def _adapters(setup: PartSetup) -> ProbePart | None:
    of = setup.options.adapters
    return (
        None
        if of is None
        else AdaptersPart(setup.asker, setup.rng, every_s=of.every, adapters=setup.facts.lora_adapters)
    )


def _prefix_ladder(setup: PartSetup) -> ProbePart | None:
    of, text = setup.options.prefix_ladder, setup.facts.text
    if of is None:
        return None
    return PrefixLadderPart(setup.asker, setup.rng, every_s=of.every, lengths=of.lengths, text=text)


PARTS: tuple[Callable[[PartSetup], ProbePart | None], ...] = (
    _reference,
    _keyed,
    _replicas,
    _cold_warm,
    _streamed,
    _images,
    _adapters,
    _prefix_ladder,
)
"""All parts in the order in which the idle server is asked."""


class RunProbes:
    """The questions of one run; does nothing where the profile has none."""

    def __init__(self, profile: Profile, server: ServerUnderTest, record: EventRecorder, redactor: Redactor) -> None:
        self._profile, self._server, self._record, self._redactor = profile, server, record, redactor
        self._prober: Prober | None = None
        self._begun = False
        self._requests = 0

    def feed(self, row: Row) -> None:
        self._requests += row.get("row") == "end"

    async def learn(self, facts: Facts, seed: int) -> list[str]:
        """Ask the idle server; returns notes for the user. They differ from those of an earlier run with the same seed:
        prompts and images that shall be new would be in the caches of the server.
        """
        options = self._profile.correctness
        if not options.model_fields_set:
            return []
        held = self._server.target.held
        memory = held.memory.probes if held is not None and held.memory is not None else None
        asker = RecordedAsker(
            self._server.asker, self._server.url, facts.model, self._record.event, self._redactor, memory
        )
        rng = random.Random(f"questions {seed} {self._record.folder.path.name}")
        images = facts.images is not False and any("images" in traffic.payload for traffic in self._profile.traffic)
        setup = PartSetup(options, asker, rng, lambda: self._requests, images, facts, memory)
        made = [make(replace(setup, rng=random.Random(rng.random()))) for make in PARTS]
        self._prober = Prober(asker, [part for part in made if part is not None], memory)
        refused = options.images is not None and facts.images is False
        notes = ["questions about images are not asked: the model takes none"] if refused else []
        return [*notes, *await self._prober.learn()]

    def start(self) -> None:
        if self._prober is not None:
            self._begun = True
            self._prober.start(lambda: self._server.down)

    async def stop(self) -> None:
        """Ask no more: after the load the server has to become idle."""
        if self._prober is not None:
            await self._prober.stop()

    async def check(self) -> None:
        """Ask wrong answers again after the load, and end."""
        if self._prober is not None and self._begun and not self._server.down:
            await self._prober.check()
