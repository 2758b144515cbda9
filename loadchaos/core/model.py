"""Types that all packages share: step, facts, terms. Times within a run are CLOCK_MONOTONIC nanoseconds (`at_ns`,
`due_ns`); a field that ends in `_s` is in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from loadchaos.core.slotted import slotted_dataclass
from loadchaos.core.typed_json import IF_SET
from loadchaos.core.urls import V1, ApiPaths

Row = Mapping[str, Any]
"""A ledger row whose kind is not known to the type checker; `core.ledger.rows` declares each kind."""

# Every request ends in exactly one outcome. Tables show them in this order.
Outcome = Literal[
    "ok", "rejected", "shed", "http_error", "stream_error", "finish_error", "finish_abort", "truncated", "empty",
    "protocol_error", "wrong_output", "connect_error", "reset", "stalled", "timeout", "aborted", "missed", "unfinished",
]  # fmt: skip
OUTCOMES: tuple[Outcome, ...] = Outcome.__args__  # type: ignore[attr-defined]  # Literal keeps its values here
BLAMELESS: frozenset[Outcome] = frozenset({"ok", "rejected", "shed", "aborted", "missed", "unfinished"})
"""Outcomes that are no failure of the server in themselves; `rejected` is one where the step did not expect it."""

SERVER_ROLES = ("engine_core", "api_server", "worker")
"""Roles of the processes of a server; a signal goes to the first by default."""

KERNEL_LOG = "watch/logs/kernel.log"
"""File of a run with the kernel log of this machine: GPU errors and OOM kills."""

READS_AT_ONCE = frozenset({"plain", "abort", "churn"})
"""Behaviours of clients that send and read at once: a silence is the server's."""

SENT_AS_TEXT = "sent as text only"
SENT_SHORT = "sent as a short prompt"
REPLACED = (SENT_AS_TEXT, SENT_SHORT)
"""Ends of a `fitted` text that mean: nothing is left of what the traffic is about."""

AS_ALLOWED = ", as the profile allows"
"""End of a part of a `fitted` text: less was sent than drawn, and still within the range of the profile."""

INSTEAD = " instead of "
"""Every part of a `fitted` text has it that says what was sent in place of what was asked."""

GENERIC_IDS = ("unexplained_", "unknown_", "unexpected_", "error_in_")
"""Beginnings of ids that stand for any failure of their kind; only its text says which one it is."""


def is_unlike(fitted: str) -> bool:
    """True if a request is not what the profile asks for, by its `fitted` text."""
    return any(INSTEAD in part and not part.endswith(AS_ALLOWED) for part in fitted.split("; "))


GPU_SLOWED: Mapping[int, str] = {
    0x8: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)", 0x80: "power brake",
}  # fmt: skip
"""Bits of NVML's clock event reasons that show a fault. A software power cap (4) is normal at full load."""

State = Literal[
    "starting", "healthy", "degraded", "hung", "dying", "dead", "restarting", "unreachable", "terminated",
]  # fmt: skip
STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]

Severity = Literal["request", "degraded", "hang", "engine_death", "startup", "node"]
WORST_FIRST: tuple[Severity, ...] = ("engine_death", "startup", "hang", "node", "request", "degraded")
Attribution = Literal["server", "load", "self-inflicted", "injected", "expected"]
Decision = Literal["pass", "fail", "unknown"]


def severity_rank(severity: str) -> int:
    """Sort key of severities, worst first; an unknown one of a newer file comes last."""
    return WORST_FIRST.index(severity) if severity in WORST_FIRST else len(WORST_FIRST)


@dataclass(frozen=True)
class TextFacts:
    """Token costs of words on this server, to build prompts of N tokens.

    Attributes:
        overhead: tokens of the chat template around one user message.
        words: words with their leading blank, each with its tokens, in any order.
        unit: a word of one token, which fills the rest.
        source: how the costs were learned: `tokenize`, `render`, `encode`, `tokenizer` (a local folder), `usage` or `guess`.
        turn_overhead: tokens that each earlier turn adds beside its words; None: unknown.
        scripts: words of other scripts, by the script's name.
    """

    overhead: int
    words: tuple[tuple[str, int], ...]
    unit: str
    source: str
    turn_overhead: int | None = None
    scripts: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()


@dataclass(frozen=True)
class Facts:
    """Facts about the server, learned before the load. None: unknown.

    Attributes:
        image_tokens: prompt tokens of one image by its size (`1024x1024`).
        long_images: sizes of images that the server refused as longer than its context.
        video_tokens: prompt tokens of one video by its kind.
        capacity_tokens: tokens that the whole KV cache holds.
        max_model_len: longest sequence of one request, in tokens.
        endpoints: tokens that an endpoint other than chat adds to each request and to each text; None: unknown.
        media_fault: what the server did wrong when it was sent an image or a video; empty: nothing.
        step_tokens: most tokens that the engine computes in one step.
        input_limit: longest prompt, where that is less (LMDeploy's blocks x block_size).
        lora_adapters: LoRA adapters of the model, as /v1/models lists them.
        api: where the paths of its API begin.
        field_changes: fields that the server refuses, each with the one that it takes instead; empty: none.
        own_pages: pages beside the API were answered, so that its /health is the server's and not a gateway's.
        sources: where each fact was learned.
    """

    base_url: str
    admin_url: str
    dialect: str
    model: str = ""
    version: str | None = None
    max_model_len: int | None = None
    input_limit: int | None = None
    capacity_tokens: int | None = None
    step_tokens: int | None = None
    kv_blocks: int | None = None
    kv_block_size: int | None = None
    images: bool | None = None
    max_images: int | None = None
    image_tokens: Mapping[str, int] = field(default_factory=dict)
    long_images: tuple[str, ...] = ()
    videos: bool | None = None
    video_tokens: Mapping[str, int] = field(default_factory=dict)
    endpoints: Mapping[str, Sequence[int] | None] = field(default_factory=dict)
    api: ApiPaths = V1
    field_changes: tuple[tuple[str, str], ...] = ()
    media_fault: str = ""
    text: TextFacts | None = None
    speculative_decoding: bool | None = None
    development_endpoints: bool | None = None
    metrics: bool | None = None
    own_pages: bool | None = None
    replicas: tuple[str, ...] = ()
    lora_adapters: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerName:
    """Name of a server program and its model. None: unknown, or not known yet."""

    dialect: str | None = None
    version: str | None = None
    model: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in (self.dialect, self.version, self.model) if part)


DEFAULT_OUTPUT_TOKENS = 128
"""Length of an answer where the profile names none."""


@dataclass(frozen=True)
class Output:
    """Requested answer length in tokens: at most `max`, or exactly `exact`."""

    max: int | None = None
    exact: int | None = None

    @property
    def tokens(self) -> int:
        return self.exact or self.max or DEFAULT_OUTPUT_TOKENS


@slotted_dataclass(frozen=True)
class Step:
    """One planned request; the same profile and seed give the same steps.

    Attributes:
        due_s: time from the start of the phase; None in a closed phase, where it is due when a user is free.
        payload: options by kind of payload.
        behaviour: kind of client behaviour; `behaviour_options` are its options.
        ordinal: number of the step within its traffic and phase, from 0. With `run_seed` a step can name what an
            earlier one sent, such as an image that is sent again.
        endpoint: name of the endpoint that it is sent to (load/endpoints).
        path: path that it is sent to as it is; empty: that of the endpoint.
    """

    index: int
    phase: int
    round: int
    due_s: float | None
    traffic: str
    seed: int
    payload: Mapping[str, Any]
    behaviour: str
    behaviour_options: Any
    output: Output
    stream: bool = True
    expect: Sequence[Outcome] = ("ok",)
    ordinal: int = 0
    run_seed: int = 0
    endpoint: str = "chat"
    path: str = ""


DEFAULT_EXPECT = (
    "failures == 0", "engine_deaths == 0", "hangs == 0", "outages == 0", "wrong_answers == 0", "ok_share >= 95%",
)  # fmt: skip
"""Expectations of a profile that states none."""


EXPOSURES = {
    "requests": "requests answered with at least a token",
    "image_requests": "requests with images answered with at least a token",
    "image_requests_while_drafting": "requests with images answered while the server made speculative drafts",
    "near_limit_requests": "prompts at the edge of the context",
    "position_crossings": "answers that grew over a position of 1,024, 2,048, 4,096 and so on",
    "aborted_requests": "requests whose client left before the end of the answer",
    "finished_tool_calls": "answers whose finish_reason is tool_calls",
    "attacks": "attacks that worked",
}
"""Names that `exposure` of a profile may count, with their meaning."""


@dataclass(frozen=True)
class Acceptance:
    """A failure that does not fail the run: its id, the reason, the last day (`2026-11-21`), and the maximum count. With
    `text` only one whose title or evidence has these words, with `frame` one whose stack has this frame.
    """

    id: str
    because: str
    until: str | None = field(default=None, metadata=IF_SET)
    at_most: int | None = field(default=None, metadata=IF_SET)
    text: str | None = field(default=None, metadata=IF_SET)
    frame: str | None = field(default=None, metadata=IF_SET)


@dataclass(frozen=True)
class ExposureGoal:
    """Exposures of this name that a run needs; `EXPOSURES` has the names."""

    count: str = "requests"
    at_least: int = 0


@dataclass(frozen=True)
class Terms:
    """Terms of the verdict, so that `analysis` needs no profile. `warm_up` has `phases` and `seconds` whose requests
    are left out of figures. `in_flight` names the most requests in flight for each load phase. `slo` limits are in seconds.
    `planned_s` None: the server decides the length of the load. `new_prompts` is traffic whose prompts share no more
    than the chat template. `questions` are the parts of `correctness` that are asked. `load` is the load that was asked,
    in words; `steady`: it is to stay the same from its begin to its end. `watched`: whose load was watched in place of
    one of its own: `traffic` that was not seen, `requests` of clients, or those of a `command`.
    """

    profile: str
    expect: Sequence[str] = ()
    accept: Sequence[Acceptance] = ()
    requires: Sequence[str] = ()
    exposure: ExposureGoal | None = None
    planned_requests: int | None = None
    attacks: Sequence[str] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    in_flight: Sequence[str] = ()
    slo: Mapping[str, float] = field(default_factory=dict)
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    planned_s: float | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    new_prompts: Sequence[str] = ()
    questions: Sequence[str] = ()
    load: str = ""
    steady: bool = False
    watched: str = ""
