"""Print how fast the oracles find each wrong-answer defect of the embedded server, and their false alarms.

`python -m bench.oracles [DEFECT...] [--seeds 20] [--share 1%] [--healthy 20]` runs a load like that of the profile
`corruption` with its questions in virtual time, once for each seed. A defect is found when an oracle reports a wrong
answer; the requests are those of the load up to then. `--share` lets a defect spoil about this share of all requests
only. A healthy run takes five minutes of virtual time. `--seeds 0` or `--healthy 0` leaves a part out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from ruamel.yaml import YAML

from bench.virtual_server import Injection, serving, virtual_time
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.oracles import ORACLES
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.model import Facts, Output, Row, Step
from loadchaos.core.redact import Redactor
from loadchaos.core.rng import Rng
from loadchaos.core.units import share as parse_share
from loadchaos.core.urls import CHAT_PATH
from loadchaos.load.payloads import secret_word
from loadchaos.load.payloads.secret_word import SecretWords
from loadchaos.load.payloads.text import QUOTE_ORDER, alphabets_of, write_prompt
from loadchaos.load.wire.request import Request
from loadchaos.profile.correctness import CorrectnessOptions
from loadchaos.run.asker import HttpAsker
from loadchaos.run.run_probes import PartSetup
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient
from loadchaos.server.discovery.text_tokens import measure_text
from loadchaos.server.probes.ask import RecordedAsker
from loadchaos.server.probes.pictures import draw_number
from loadchaos.server.probes.prober import Prober
from loadchaos.simulator.engine.tokenizer import WORDS

PROFILES = Path(__file__).parent.parent / "profiles"
MOST_REQUESTS, SEEDS, USERS, HEALTHY_S = 500, 20, 24, 300.0
_TO_ADAPTERS = 0.8
_QUOTING = 0.45  # share of the load, as in the profile
_WORDS = [word for word in WORDS if len(word) > 1]


@dataclass(frozen=True)
class Case:
    """A defect (empty: none), the flags of the server under which the load triggers it, and the share of images.

    `adapters` are drawn by four of five requests, as in the profile `lora_thrash`, whose questions are asked then.
    """

    defect: str
    flags: Mapping[str, object] = field(default_factory=dict)
    images: float = 0.0
    adapters: tuple[str, ...] = ()


ADAPTERS = ("alpha", "beta", "gamma", "delta")
SMALL_CACHE: Mapping[str, object] = {"num_gpu_blocks": 384}
CASES = (
    Case("stale_kv_on_resume", SMALL_CACHE),
    Case("streams_swapped"),
    Case("rows_slip_on_abort"),
    Case("lost_token"),
    Case("repeated_token"),
    Case("wrong_block_at_edge"),
    Case("prompt_taken_for_decode"),
    Case("poisoned_prefix_cache"),
    Case("stale_image_embedding", images=0.5),
    Case("wrong_adapter", {"lora_modules": " ".join(ADAPTERS), "max_loras": 3}, adapters=ADAPTERS),
)
SLOW = 0.05  # steps of a very large model, so that five minutes have few enough requests for 20 runs
HEALTHY: Sequence[Mapping[str, object]] = (
    {"speed": SLOW},
    {"speed": SLOW, "num_gpu_blocks": 192},
    {"speed": SLOW, "num_speculative_tokens": 3},
    {"speed": SLOW, "num_gpu_blocks": 192, "num_speculative_tokens": 3},
    {"speed": SLOW, "num_speculative_tokens": 0, "enable_prefix_caching": False},
)
"""Flags of the healthy runs, in turns: defaults, preemption, more drafts, both, and neither drafts nor a prefix cache."""


@dataclass
class Trial:
    """Result of one run.

    Args:
        found: failures, with the oracle that reported them first.
        requests: requests of the load when the first one was found; those of the whole run, where none was.
        questions: questions until then.
        touched: share of the requests, those of the questions too, that the defect spoiled.
        seconds: virtual duration of the load.
        checks: the oracles' checks at the end.
    """

    found: list[tuple[str, str]] = field(default_factory=list)
    requests: int = 0
    questions: int = 0
    touched: float = 0.0
    seconds: float = 0.0
    checks: list[CheckResult] = field(default_factory=list)


class Load:
    """Clients as in the profile: shared prefixes, repeated prompts, plain text, quotes, and clients that leave.

    `mixed_up` are the answers that hold another request's secret word.
    """

    def __init__(self, port: int, seed: int, case: Case, facts: Facts) -> None:
        self._port, self._rng, self._case = port, random.Random(f"load {seed}"), case
        self._facts, self._seed, self._secrets = facts, seed, SecretWords(alphabets_of(facts.text), seed, "load")
        self.sent = self.ended = self.mixed_up = 0
        self._repeated = [self._text(32, 128) for _ in range(32)]
        self._talks = [self._text(300, 700) for _ in range(24)]

    def _text(self, least: int, most: int) -> str:
        return " ".join(self._rng.choices(_WORDS, k=self._rng.randint(least, most)))

    def _quoting(self, owner: int) -> str:
        """The prompt of a request that has to repeat its own secret word."""
        step = Step(owner, 0, 0, None, "load", self._seed, {}, "plain", None, Output(max=128))
        request = Request(
            step=step, output=step.output, expect=["ok"], stream=True, path="", owner=owner,
            secret=secret_word.encode(owner, self._seed), quotes=4,
        )  # fmt: skip
        write_prompt(request, self._facts, self._rng.randint(128, 512), Rng(self._rng.getrandbits(60)))
        return request.text or ""

    def _model(self) -> dict[str, str]:
        """The adapter that a request names, if it names one."""
        named = self._case.adapters and self._rng.random() < _TO_ADAPTERS
        return {"model": self._rng.choice(self._case.adapters)} if named else {}

    def _prompt(self, owner: int) -> str:
        kind = self._rng.random()
        if kind < 0.12:
            return self._rng.choice(self._repeated)
        if kind < 0.42:
            n = self._rng.randrange(len(self._talks))
            if len(self._talks[n]) > 8_000:
                self._talks[n] = self._text(300, 700)
            self._talks[n] += f" {self._text(8, 40)}"
            return self._talks[n]
        return self._quoting(owner) if kind < 0.42 + _QUOTING else self._text(32, 512)

    async def user(self) -> None:
        """Send one request after the other."""
        while True:
            leaves = self._rng.randint(1, 20) if self._rng.random() < 0.2 else 0
            owner = self.sent = self.sent + 1
            prompt = self._prompt(owner)
            content: object = prompt
            if self._rng.random() < self._case.images:
                url = draw_number(str(self._rng.randrange(1000, 10_000)), mark=self._rng.getrandbits(24))
                content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": content}]
            body = {
                **self._model(), "messages": [{"role": "user", "content": content}], "stream": bool(leaves),
                "temperature": 0,
                "max_tokens": 96 if QUOTE_ORDER in prompt else self._rng.randint(16, 96),
                "seed": self._rng.randrange(1 << 30),
            }  # fmt: skip
            answer = await self._exchange(json.dumps(body).encode(), leaves)
            self.mixed_up += self._secrets.checker(owner)(answer) is not None
            self.ended += 1

    async def _exchange(self, body: bytes, leaves_after: int) -> str:
        """Send a request; returns the text of a whole answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            received = b""
            while data := await reader.read(65536):
                received += data
                if leaves_after and received.count(b"data: ") > leaves_after:
                    return ""
            if leaves_after:
                return ""
            return str(json.loads(received.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"])
        finally:
            writer.transport.abort()


class Judge:
    """Feeds the questions' rows to all oracles."""

    def __init__(self) -> None:
        self._oracles = [kind() for kind in ORACLES.values()]
        self.failures: list[tuple[str, Failure]] = []
        self.questions = 0

    def emit(self, row: Row) -> None:
        """Fold one row, as the judge of a run does."""
        self.questions += row.get("row") == "question" and row.get("when") == "load"
        for oracle in self._oracles:
            oracle.fold(row)
            self.failures += [(oracle.name, failure) for failure in oracle.poll(0)]

    def checks(self) -> list[CheckResult]:
        """The oracles' checks."""
        return [found for oracle in self._oracles for found in oracle.finish() if isinstance(found, CheckResult)]


def options(case: Case) -> CorrectnessOptions:
    """`correctness` of the shipped profile, with questions about images where the load has some."""
    profile = PROFILES / ("lora_thrash.yaml" if case.adapters else "corruption.yaml")
    asked = YAML(typ="safe").load(profile)["correctness"]
    return CorrectnessOptions.model_validate(asked | ({"images": {"every": "1s"}} if case.images else {}))


async def _facts(url: str) -> Facts:
    """What the questions need to know of the server."""
    async with httpx.AsyncClient(trust_env=False) as http:
        client = DiscoveryClient(HttpAsker(http), url, url, model="sim")
        return await measure_text(client, Facts(url, url, "vllm", "sim"), CalibrationRequest())


async def _trial(case: Case, seed: int, injection: Injection, *, limit_s: float, requests: int, to_end: bool) -> Trial:
    judge, result = Judge(), Trial()
    async with serving((case.defect,) if case.defect else (), {"seed": seed, **case.flags}, injection) as port:
        url = f"http://127.0.0.1:{port}"
        http_asker = HttpAsker.with_own_client({})
        asker = RecordedAsker(http_asker, url + CHAT_PATH, "sim", judge.emit, Redactor())
        rng = random.Random(f"questions {seed}")
        asked, facts = options(case), replace(await _facts(url), lora_adapters=case.adapters)
        load = Load(port, seed, case, facts)
        setup = PartSetup(asked, asker, rng, lambda: load.ended, case.images > 0, facts)
        prober = Prober(asker, setup.parts())
        await prober.learn()
        learned, begin_s = len(injection.touched), time.monotonic()
        prober.start(lambda: False)
        users = [asyncio.create_task(load.user()) for _ in range(USERS)]
        while time.monotonic() - begin_s < limit_s and load.ended < requests:
            if not to_end and (judge.failures or load.mixed_up):
                break
            await asyncio.sleep(0.05)  # costs nothing in virtual time
        result.requests, result.questions = load.ended, judge.questions
        result.seconds = time.monotonic() - begin_s
        result.touched = (len(injection.touched) - learned) / max(1, load.sent + judge.questions)
        await prober.stop()
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        await prober.check()
        await http_asker.http.aclose()
    result.found = [(failure.id, name) for name, failure in judge.failures]
    result.found += [("answer_of_another_request", "secret words")] * load.mixed_up
    result.checks = judge.checks()
    return result


def trial(case: Case, seed: int, *, keep: float = 1.0) -> Trial:
    """Run one seed in virtual time, until the defect is found or the load has sent 500 requests."""
    with virtual_time() as runner:
        injection = Injection(keep, seed)
        return runner.run(_trial(case, seed, injection, limit_s=600, requests=MOST_REQUESTS, to_end=False))


def whole_trial(case: Case, seed: int, *, limit_s: float = 600.0, requests: int = 1_000_000) -> Trial:
    """Run one seed in virtual time to its end."""
    with virtual_time() as runner:
        return runner.run(_trial(case, seed, Injection(), limit_s=limit_s, requests=requests, to_end=True))


def row(case: Case, share: float, trials: Sequence[Trial]) -> str:
    """One row of the table."""
    hits = [t for t in trials if t.found]
    oracles = Counter(t.found[0][1] for t in hits)
    needed = [t.requests for t in hits]
    shown = ", ".join(f"{name} {n}" for name, n in oracles.most_common())
    middle = f"{statistics.median(needed):.0f}" if needed else "-"
    asked = statistics.median(t.questions for t in trials)
    return (
        f"| `{case.defect}` | {share:.1%} | {len(hits)} of {len(trials)} | {middle} | {max(needed, default='-')} | "
        f"{asked:.0f} | {shown} |"
    )


def print_defects(args: argparse.Namespace) -> None:
    """Print the table of the defects."""
    print("| defect | requests touched | found | requests, median | max | questions, median | found first by |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for case in [c for c in CASES if c.defect in args.defects] or CASES:
        natural = whole_trial(case, 901, requests=MOST_REQUESTS).touched
        keep = 1.0 if args.share is None else min(1.0, args.share / natural)
        print(row(case, natural * keep, [trial(case, seed, keep=keep) for seed in range(args.seeds)]), flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("defects", nargs="*", metavar="DEFECT")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--share", type=parse_share, default=None, metavar="SHARE")
    parser.add_argument("--healthy", type=int, default=SEEDS, metavar="RUNS")
    args = parser.parse_args()
    if args.seeds:
        print_defects(args)
    alarms = requests = questions = 0
    for seed in range(args.healthy):
        done = whole_trial(Case("", HEALTHY[seed % len(HEALTHY)]), seed, limit_s=HEALTHY_S)
        alarms, requests, questions = alarms + bool(done.found), requests + done.requests, questions + done.questions
        told = ", ".join(f"{failure} by {oracle}" for failure, oracle in done.found) or "no alarm"
        unclear = ", ".join(check.name for check in done.checks if check.verdict != "pass")
        print(f"healthy {seed}: {told}; {done.requests} requests, {done.questions} questions {unclear}", flush=True)
    if args.healthy:
        print(
            f"{args.healthy} healthy runs of {HEALTHY_S:.0f} s: {alarms} with a false alarm; {requests:,} requests, "
            f"{questions:,} questions"
        )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
