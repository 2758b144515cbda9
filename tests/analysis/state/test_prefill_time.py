"""Freezes while long prompts wait, and servers that only prefill, in virtual time."""

import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from loadchaos.analysis.state.machine import StateMachine
from loadchaos.analysis.state.prefill_time import LearnedTime
from tests.analysis.conftest import World
from tests.rows import MS, S

SLOWEST_PROMPT_S = 40.0
LONGEST_SILENCE_S = 55.0  # a longer one is a hang, whatever the reason


@dataclass
class Stream:
    """A request in the server."""

    id: str
    user: int
    tokens: int
    images: int
    output: int
    sent_ns: int
    left: float = 0.0  # prompt tokens not computed yet
    first_ns: int | None = None
    token_ns: int = 0
    chunks: int = 0


@dataclass
class PrefillServer:
    """A server that computes prompts in chunks, first come first served; only its clients are seen.

    `beside`: streams get their tokens in the steps of the chunks; else prompts come first, as in SGLang.
    """

    tokens_per_s: float
    chunk: int = 2048
    beside: bool = True
    slots: int = 64
    decode_s: float = 0.02
    image_s: float = 0.1
    preempt: float = 0.0  # of the steps: the newest stream is computed again
    compile_s: float = 0.0  # in the first step
    users: int = 8
    prompts: tuple[int, int] = (64, 4000)
    images: float = 0.0  # share of the requests
    output: tuple[int, int] = (8, 100)
    seed: int = 0
    freezes: dict[float, float] = field(default_factory=dict)  # at s: for s

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.now = self.beat_ns = 1_000 * S
        self.rows: list[dict[str, Any]] = [self.probe()]
        self.streams: list[Stream] = []
        self.queue: deque[Stream] = deque()
        self.free: list[int] = list(range(self.users))
        self.n = self.tokens = 0

    def probe(self) -> dict[str, Any]:
        row = {"row": "probe", "at_ns": self.now, "replica": "server", "what": "health", "ok": True, "status": 200}
        return row | {"error": None, "body": None, "took_ns": MS}

    def run(self, seconds: float) -> list[dict[str, Any]]:
        """Rows of this time."""
        end_ns = self.now + round(seconds * S)
        self.wait(self.compile_s, self.send)
        while self.now < end_ns:
            for at_s in [at_s for at_s in self.freezes if self.now >= (1_000 + at_s) * S]:
                self.wait(self.freezes.pop(at_s))
            self.send()
            self.step()
        return self.rows

    def send(self) -> None:
        """Every free user sends a request."""
        for user in self.free:
            self.n += 1
            images = int(self.rng.random() < self.images)
            tokens = self.rng.randint(*self.prompts)
            stream = Stream(f"r{self.n}", user, tokens, images, self.rng.randint(*self.output), self.now, float(tokens))
            begin = {"row": "begin", "at_ns": self.now, "id": stream.id, "tokens": tokens, "images": images}
            self.rows.append({**begin, "file": "requests-0", "behaviour": "plain"})
            self.queue.append(stream)
        self.free.clear()

    def step(self) -> None:
        """One step of the engine: a chunk of prompts, and a token for each stream."""
        while self.queue and len(self.streams) < self.slots:
            self.streams.append(self.queue.popleft())
        room, took_s = float(self.chunk), self.decode_s
        for stream in self.streams:
            part = min(room, stream.left)
            if part > 0 and stream.left == stream.tokens:
                took_s += stream.images * self.image_s
            stream.left -= part
            room -= part
        prefilled = self.chunk - room
        decoding = [s for s in self.streams if s.left <= 0] if self.beside or prefilled == 0 else []
        first = [s for s in self.streams if s.left <= 0 and s.first_ns is None]
        self.wait(took_s + prefilled / self.tokens_per_s)
        for stream in {s.id: s for s in [*decoding, *first]}.values():
            stream.first_ns = stream.first_ns or self.now
            stream.token_ns, stream.chunks = self.now, stream.chunks + 1
            self.tokens += 1
            if stream.chunks >= stream.output:
                self.end(stream)
        if self.streams and self.rng.random() < self.preempt:
            self.streams[-1].left = float(self.streams[-1].tokens + self.streams[-1].chunks)

    def end(self, stream: Stream) -> None:
        self.streams.remove(stream)
        self.free.append(stream.user)
        end = {"row": "end", "at_ns": self.now, "id": stream.id, "outcome": "ok", "status": 200, "expect": ["ok"]}
        times = {"sent_ns": stream.sent_ns, "first_token_ns": stream.first_ns, "last_byte_ns": self.now}
        self.rows.append({**end, **times, "chunks": stream.chunks, "images": stream.images, "error": None})

    def wait(self, seconds: float, send: Any = None) -> None:
        """Let time pass: only heartbeats and a gateway's /health go on."""
        end_ns = self.now + round(seconds * S)
        if seconds and send:
            send()
        while self.beat_ns + 250 * MS <= end_ns:
            self.beat_ns += 250 * MS
            self.now = max(self.now, self.beat_ns)
            self.beat()
        self.now = max(self.now, end_ns)

    def beat(self) -> None:
        here = [*self.streams, *self.queue]
        silences = [self.now - (s.token_ns or s.sent_ns) for s in here]
        waiting = [s for s in here if s.first_ns is None]
        row = {
            "row": "heartbeat",
            "at_ns": self.now,
            "in_flight": len(here),
            "tokens": self.tokens,
            "file": "requests-0",
        }
        row |= {"waiting_tokens": sum(s.tokens for s in waiting), "images_in_prefill": sum(s.images for s in waiting)}
        row |= {"oldest_silence_ns": max(silences, default=0), "stream_silences_ns": sorted(silences)[-3:][::-1]}
        self.rows += [row, self.probe()]
        self.tokens = 0


def states(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    machine = StateMachine("server", known_server=False)
    return [dict(s) for row in rows for s in machine.changes_after(row) if s["from"] != s["to"]]


def hangs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [s for s in states(rows) if s["to"] == "hung"]


@pytest.mark.parametrize("frozen_s", [12, 25])
@pytest.mark.parametrize("rate", [4_000, 20_000])
@pytest.mark.parametrize("beside", [True, False])
def test_freeze_while_long_prompts_wait_is_a_hang_in_time(frozen_s: float, rate: float, beside: bool) -> None:
    server = PrefillServer(rate, beside=beside, users=12, prompts=(1000, 8000), output=(20, 60), freezes={40: frozen_s})
    (hung,) = hangs(server.run(40 + frozen_s + 20))
    waited = max(r["waiting_tokens"] for r in server.rows if r["row"] == "heartbeat" and r["at_ns"] > 1040 * S)
    assert waited > 8_000
    assert hung["at_ns"] - 1040 * S < 12 * S


def test_freeze_while_images_wait_is_a_hang_in_time() -> None:
    server = PrefillServer(20_000, users=24, images=0.8, output=(4, 10), freezes={40: 15})
    (hung,) = hangs(server.run(60))
    assert hung["at_ns"] - 1040 * S < 15 * S


def test_freeze_before_enough_was_learned_has_the_fixed_limit(world: World) -> None:
    world.metrics = False
    world.idle(1).serve(15, in_flight=6)
    world.waiting_tokens = 8_000
    assert hangs(world.stall(17).rows) == []
    assert len(hangs(world.stall(2).rows)) == 1


def test_freeze_teaches_no_time_for_prompts() -> None:
    server = PrefillServer(20_000, users=12, prompts=(1000, 8000), output=(5, 20), freezes={40: 25, 70: 12})
    _first, second = hangs(server.run(100))
    assert second["at_ns"] - second["since_ns"] < 12 * S


@pytest.mark.parametrize(
    "server",
    [
        PrefillServer(500, users=4, prompts=(4000, 16_000), output=(4, 30)),
        PrefillServer(500, chunk=512, beside=False, users=4, prompts=(4000, 16_000), output=(4, 30)),
        PrefillServer(400, chunk=16_384, users=3, prompts=(12_000, 16_000), output=(4, 30)),
        PrefillServer(2000, users=24, slots=4, prompts=(64, 8000), preempt=0.05),
        PrefillServer(20_000, users=24, slots=4, prompts=(16, 128), output=(100, 400)),
        PrefillServer(3000, users=8, prompts=(64, 16_000), images=0.5, image_s=3.0),
        PrefillServer(1000, users=8, compile_s=25.0, prompts=(64, 8000)),
    ],
    ids=["slow", "prompts first", "no chunks", "preempted", "queue", "images", "compiles"],
)
def test_prefill_of_long_prompts_is_no_hang(server: PrefillServer) -> None:
    assert hangs(server.run(240)) == []


def healthy(seed: int) -> PrefillServer:
    """A server with a prompt of 40 s at most."""
    rng = random.Random(seed)
    rate = 10 ** rng.uniform(2.3, 5)
    most = round(min(64_000, rate * SLOWEST_PROMPT_S * rng.uniform(0.1, 1)))
    return PrefillServer(
        rate, chunk=rng.choice([512, 2048, 8192, 65_536]), beside=rng.random() < 0.6, slots=rng.choice([2, 8, 64]),
        decode_s=10 ** rng.uniform(-2, -0.3), image_s=rng.uniform(0.01, 2), preempt=rng.choice([0, 0, 0.02, 0.05]),
        compile_s=rng.choice([0, 0, 20]), users=rng.randint(1, 32), prompts=(rng.randint(1, most), most),
        images=rng.choice([0, 0, 0.3, 1]), output=(2, rng.randint(2, 200)), seed=seed,
    )  # fmt: skip


def longest_silence_s(rows: list[dict[str, Any]]) -> float:
    beats = [r for r in rows if r["row"] == "heartbeat"]
    tokens = [beats[0]["at_ns"], *(r["at_ns"] for r in beats if r["tokens"]), beats[-1]["at_ns"]]
    return float(max(b - a for a, b in itertools.pairwise(tokens))) / S


def called_hung(seed: int) -> str | None:
    server = healthy(seed)
    found = hangs(server.rows) if longest_silence_s(server.run(200)) < LONGEST_SILENCE_S else []
    return f"seed {seed}: {server!r}: {found}" if found else None


MANY = pytest.param(range(1000, 2000), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("seeds", [range(30), MANY], ids=len)
def test_prefill_of_random_servers_is_no_hang(seeds: range) -> None:
    assert [bad for seed in seeds if (bad := called_hung(seed))] == []


def test_learned_time_is_fixed_until_twelve_first_tokens() -> None:
    learned = LearnedTime()
    for _ in range(11):
        learned.learn(S, S // 10, 0)
    assert learned.allowed_ns(4 * S) == 4 * S
    learned.learn(S, S // 10, 0)
    assert learned.allowed_ns(S) == round(0.15 * S)
    assert learned.allowed_ns(4 * S) == round(0.3 * S) + 2 * S  # nobody has seen that much wait


def test_learned_time_counts_a_queue_behind_streams_up_to_the_fixed_time() -> None:
    queue, slow = LearnedTime(), LearnedTime()
    for _ in range(20):
        queue.learn(S, 20 * S, 0)
        slow.learn(S, 20 * S, 20 * S)
    assert queue.allowed_ns(S) == round(1.5 * S)
    assert slow.allowed_ns(S) == 30 * S


def test_learned_time_is_that_of_the_slowest_tenth_and_has_a_floor() -> None:
    learned, cached = LearnedTime(), LearnedTime()
    for n in range(100):
        learned.learn(S, S // 2 if n % 5 == 0 else S // 100, 0)
        cached.learn(S, S // 1000, 0)
    assert learned.allowed_ns(S) == round(0.75 * S)
    assert cached.allowed_ns(S) == round(0.05 * S)
