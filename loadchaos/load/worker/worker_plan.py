"""One worker's share of plan.json: phases, steps, and requests as bytes."""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from loadchaos.core import typed_json
from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import Facts, Step
from loadchaos.core.outcome_rules import SHED_STATUSES, matches, retry_after_s
from loadchaos.core.redact import Redactor, hidden_values
from loadchaos.core.session_ids import try_suffix
from loadchaos.core.units import NS_PER_S
from loadchaos.load import registry, request_builder
from loadchaos.load.behaviours import BEHAVIOURS, Behaviour
from loadchaos.load.endpoints import DEFAULT, ENDPOINTS
from loadchaos.load.payloads import live
from loadchaos.load.payloads.secret_word import SecretWords
from loadchaos.load.payloads.text import alphabets_of
from loadchaos.load.wire.answer_reader import SMALLEST_CONTEXT, AnswerRules
from loadchaos.load.wire.contract import asked_tokens
from loadchaos.load.wire.request import (
    DEFAULT_HEADERS,
    Request,
    WireTimeouts,
    content_length,
    headers_with_values,
    request_head,
)
from loadchaos.load.wire.sockets import Origin, Slot
from loadchaos.load.worker import bundle
from loadchaos.profile import request_trace
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.profile.run_plan import RunPlan
from loadchaos.profile.steps import is_left, of_phase
from loadchaos.server.dialects import DIALECTS, UNKNOWN

DEAD_SERVER_PAUSE_S = 0.5
"""Pause of a user, in seconds, after a request to a dead or absent server."""
FIRST_WAIT_S = 1.0
"""Wait after a 429 without a Retry-After, with `on_429: wait`; it doubles with each further one of the request."""
SHORTEST_WAIT_S = 0.1
"""Shortest wait, as a `Retry-After: 0` must not become a flood."""
_HAVE_LOGPROBS = frozenset({DEFAULT, "completions"})
"""Endpoints whose log probabilities are read."""


@dataclass(frozen=True)
class WorkerPhase:
    """A phase as the dispatcher needs it. `open`: its steps have due times. `slots` are this worker's users. With `drain`
    a new round waits until nothing is in flight. `for_s` is the duration that the profile sets, `behind_s` the time that
    an earlier, resumed run has done. The requests of `replay` are sent `speed` times as fast.
    """

    index: int
    open: bool
    slots: int
    drain: bool = False
    for_s: float | None = None
    behind_s: float = 0.0
    replay: RequestTrace | None = None
    speed: float = 1.0


def with_behaviour_options(step: Step) -> Step:
    options = BEHAVIOURS[step.behaviour].model_validate(step.behaviour_options)
    return replace(step, behaviour_options=options)


def user_share(total: int, worker: int, workers: int) -> int:
    """Return one worker's part of `total` users, at least 1. Parts differ by one at most."""
    return max(1, total // workers + (worker < total % workers))


class WorkerPlan:
    """The contents of plan.json and facts.json, for one worker. Raises LedgerError when they cannot be read."""

    def __init__(self, plan: RunPlan, facts: Facts, worker: int, env: Mapping[str, str]) -> None:
        self.worker = worker
        self.workers, self.seed = plan.workers, plan.seed
        if not 0 <= worker < self.workers:
            raise LedgerError(
                f"plan.json: worker {worker} of {self.workers}: workers count from 0; start the run again"
            )
        self._resume = plan.resume
        self.facts = facts
        # A worker on another machine has its own folder; request ids still carry the run's prefix.
        self.folder = Path(plan.spool or plan.folder)
        self.target = Origin(plan.base_url, plan.tls.context(), plan.via)
        self.profile: Profile = from_mapping(plan.profile, registry.traffic_registry())
        limits = self.profile.limits
        self.limits = WireTimeouts.of(limits)
        self._backoff_s, self._backoff_max_s = limits.backoff, limits.backoff_max
        dialect = DIALECTS.get(facts.dialect, UNKNOWN).at(facts.version)
        self._rules = dialect.outcome_rules
        self._keeps_streams = dialect.keeps_streams
        self._id_prefix = plan.tag or bundle.run_tag(str(self.folder))
        self._secrets = SecretWords(alphabets_of(facts.text), self.seed, self._id_prefix)
        given = plan.headers
        header_dict = headers_with_values(given, plan.api_key_env, env)
        secrets = [value.removeprefix("Bearer ") for name, value in header_dict.items() if given.get(name) != value]
        self._redactor = Redactor([*secrets, *hidden_values(env)])
        self._heads: dict[str, bytes] = {}
        self._traced = self.profile.traceparent
        self.sessions = frozenset(t.name for t in self.profile.traffic if t.session is not None)
        self._headers = {**DEFAULT_HEADERS, **header_dict}

    @classmethod
    def read(cls, path: Path, worker: int | None, env: Mapping[str, str] | None = None) -> WorkerPlan:
        """Read the run folder's plan.json and the facts.json beside it; with `worker` None, the plan names its worker."""
        try:
            plan = RunPlan.read(path)
            facts = typed_json.from_json(Facts, orjson.loads((path.parent / "facts.json").read_bytes()))
        except (OSError, orjson.JSONDecodeError) as e:
            raise LedgerError(f"{path}: the plan cannot be read: {e}; start the run again") from e
        number = plan.worker or 0 if worker is None else worker
        return cls(plan, facts, number, os.environ if env is None else env)

    def phases(self) -> Iterator[tuple[WorkerPhase, Iterator[Step]]]:
        """Yield each phase with this worker's steps. Those of a closed phase with `for_s` never end."""
        resumed = self._resume
        from_phase, behind_s, sent = (resumed.phase, resumed.behind_s, resumed.sent) if resumed else (0, 0.0, ())
        for number, phase in enumerate(self.profile.load):
            if number < from_phase:
                continue
            elapsed_s = behind_s if number == from_phase else 0.0
            worker_phase = WorkerPhase(
                number,
                open=phase.kind != "closed",
                # The remainder of a burst may fall on any worker.
                slots=-(-phase.slots // self.workers)
                if phase.kind == "burst"
                else user_share(phase.slots, self.worker, self.workers),
                drain=phase.kind != "open" and phase.between == "drain",
                for_s=None if phase.for_ is None else phase.for_ - elapsed_s,
                behind_s=elapsed_s,
                replay=None if phase.replay is None else request_trace.read(Path(phase.replay)),
                speed=phase.speed,
            )
            steps = of_phase(self.profile, self.seed, number, self.worker, self.workers)
            if phase.replay is not None:
                steps = map(with_behaviour_options, steps)
            yield worker_phase, (step for step in steps if is_left(step.index, sent)) if sent else steps

    def build_request(self, step: Step, part: str = "") -> Request:
        """Build a step's request; the server may log its id (X-Request-Id). `part` names a later request of a session."""
        request = request_builder.build(step, self.facts)
        request.id = f"lc-{self._id_prefix}-{step.index}{part}"
        self._write_head(request)
        check = self._secrets.checker(request.owner)
        given = request.contract is not None or request.extra  # the body may have a limit of its own
        most_tokens = limit = asked_tokens(request.body) if given else request.max_tokens
        if request.exact is not None or request.most is not None:
            most_tokens = None  # their lengths are judged over all answers
        request.rules = AnswerRules(
            self._rules,
            check,
            request.contract,
            request.answers,
            most_tokens,
            model=request.model,
            logprobs=request.endpoint in _HAVE_LOGPROBS and bool(request.extra.get("logprobs")),
            texts_differ=request.texts_differ,
            limit=limit,
            context=self.facts.max_model_len or SMALLEST_CONTEXT,
        )
        request.limits, request.reader = self.limits, ENDPOINTS[request.endpoint].answer
        request.fresh = BEHAVIOURS[step.behaviour].FRESH or (request.stream and not self._keeps_streams)
        return request

    def pipelined(self, first: Request) -> list[Request]:
        behaviour: Behaviour = first.step.behaviour_options
        found = []
        for n in range(1, behaviour.follower_count(first.step.seed) + 1):
            request = copy.copy(first)
            request.id = f"{first.id}.{n}"
            self._write_head(request)
            found.append(request)
        return found

    def again(self, first: Request, tries: int) -> Request:
        """The request once more, after `tries` refusals. Each try has an id, and so rows, of its own."""
        request = copy.copy(first)
        request.tries, request.id = tries, first.id + try_suffix(tries)
        self._write_head(request)
        return request

    def wait_ns(self, row: EndRow, tries: int, phase_end_ns: int | None) -> int | None:
        """Wait before a request that was refused with 429 is sent again. None: it is not, as the profile does not ask for
        it, or the next try would begin after the total limit of the request or the end of its phase.
        """
        if self.profile.on_429 != "wait" or row["outcome"] != "shed" or row["status"] not in SHED_STATUSES:
            return None
        told_s = retry_after_s(str(row["detail"].get("retry_after", "")), time.time())
        wait_s = FIRST_WAIT_S * 2.0 ** min(tries, 30) if told_s is None else max(told_s, SHORTEST_WAIT_S)
        last_ns = row["due_ns"] + self.limits.total_ns
        if phase_end_ns is not None:
            last_ns = min(last_ns, phase_end_ns)
        return int(wait_s * NS_PER_S) if row["at_ns"] + wait_s * NS_PER_S < last_ns else None

    def _write_head(self, request: Request) -> None:
        head = self._heads.get(request.path) or self._head(request.path, request.endpoint)
        if self._traced:
            head += f"traceparent: {_traceparent(request.id)}\r\n".encode()
        request.head = b"%sX-Request-Id: %s\r\n%s" % (head, request.id.encode(), content_length(request.body))

    def _head(self, path: str, endpoint_name: str) -> bytes:
        head = self._heads.get(path)
        if head is None:
            endpoint = ENDPOINTS[endpoint_name]
            headers = {**endpoint.headers, **self._headers}
            head = request_head(self.target.path(path), self.target.host_header, headers, endpoint.content_type)
            self._heads[path] = head
        return head

    def pause_s(self, row: EndRow, took_s: float, slot: Slot) -> float:
        """Pause of a user after a request, in seconds; 0 or less: none. It doubles with each error in a row.

        Without it, users send thousands of requests a second to a gateway whose server is gone, and use up their whole
        plan before a pause of the load can arrive.
        """
        outcome = row["outcome"]
        if outcome == "aborted" or outcome in row["expect"]:
            slot.errors_in_row = 0
            return 0.0
        paused_s = min(self._backoff_max_s, self._backoff_s * 2.0 ** min(slot.errors_in_row, 30))
        slot.errors_in_row += 1
        dead = outcome == "http_error" and matches(self._rules.engine_dead, row["error"] or "")
        if dead or outcome == "connect_error":
            paused_s = max(paused_s, DEAD_SERVER_PAUSE_S)
        return paused_s - took_s

    def redact_answer(self, answer: live.SentBack) -> live.SentBack:
        calls = tuple(c._replace(arguments=self._redactor.text(c.arguments)) for c in answer.calls)
        return live.SentBack(self._redactor.text(answer.text), calls)

    def redact(self, row: EndRow) -> None:
        """Remove our keys from a row; a server's error or answer may repeat them."""
        redact_row(row, self._redactor)


_OF_THE_SERVER = ("request_id", "finish_reason", "error_code", "detail", "labels", "content", "wrong", "signs")
"""Fields of an end row that a server may fill with any text, beside those that are redacted by their form."""


def redact_row(row: EndRow, redactor: Redactor) -> None:
    if row["error"] is not None:
        row["error"] = redactor.text(row["error"])
    if (content := row.get("content")) is not None and "begin" in content:
        content["begin"] = redactor.text(content["begin"])
    if row["evidence"]:
        row["evidence"] = [redactor.text(e) for e in row["evidence"]]
    if redactor.knows((*map(row.get, _OF_THE_SERVER),)):
        row.update(redactor.data(row))


def _traceparent(request_id: str) -> str:
    """W3C `traceparent` of a request: version, trace id, span id, flags (1: sampled). The ids are the first 16 and the next
    8 bytes of the BLAKE2b of its id with 24 bytes. https://www.w3.org/TR/trace-context/.
    """
    digest = hashlib.blake2b(request_id.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-01"
