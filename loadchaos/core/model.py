"""The nouns every room shares, frozen. Each has one meaning; a new word is added here or not at all.

A row is one JSON object of the ledger. Times inside one run are CLOCK_MONOTONIC nanoseconds (`at_ns`, `due_ns`); a
field that ends in `_s` is seconds. Rows are plain mappings, because the ledger must outlive any class; the keys of each
kind of row are written down in docs/ledger.md and beside the code that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from loadchaos.core.slotted import slotted_dataclass

Row = Mapping[str, Any]

# Every request ends in exactly one of these (design: outcomes). The order is the order in which tables show them.
Outcome = Literal[
    "ok",
    "rejected",
    "shed",
    "http_error",
    "stream_error",
    "finish_error",
    "finish_abort",
    "truncated",
    "empty",
    "protocol_error",
    "wrong_output",
    "connect_error",
    "reset",
    "stalled",
    "timeout",
    "aborted",
    "missed",
    "unfinished",
]
OUTCOMES: tuple[Outcome, ...] = Outcome.__args__  # type: ignore[attr-defined]  # Literal keeps its values here
BLAMELESS: frozenset[Outcome] = frozenset({"ok", "rejected", "shed", "aborted", "missed", "unfinished"})
"""Outcomes that are not by themselves a failure of the server; `rejected` is one where the step did not expect it."""

KERNEL_LOG = "watch/logs/kernel.log"
"""Where a run keeps what the kernel of this machine says of its GPUs, and of kills for want of memory."""

GPU_SLOWED: Mapping[int, str] = {
    0x8: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)", 0x80: "power brake",
}  # fmt: skip
"""Bits of NVML's clocks event reasons that tell of trouble. A power cap set by software (4) is a GPU at full load."""

State = Literal[
    "starting",
    "healthy",
    "degraded",
    "hung",
    "dying",
    "dead",
    "restarting",
    "unreachable",
    "terminated",
]
STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]

Severity = Literal["request", "degraded", "hang", "engine_death", "startup", "node"]
Attribution = Literal["server", "self-inflicted", "injected", "expected"]
Decision = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True)
class TextFacts:
    """How text becomes tokens on this server, so that a prompt of N tokens can be made without a tokenizer.

    `overhead` are the tokens of the chat template around one user message; each of `words` (with its leading blank)
    costs the number beside it, in any order, and `unit` (a word of cost 1) fills what is left. `source` says how it
    was learned: "tokenize", "render", "encode", "tokenizer" (a local folder), "usage" or "guess". `turn_overhead` is what
    each earlier question with its answer adds to a prompt beside their words (None: not known); `scripts` are words of
    other scripts, by its name.
    """

    overhead: int
    words: tuple[tuple[str, int], ...]
    unit: str
    source: str
    turn_overhead: int | None = None
    scripts: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()


@dataclass(frozen=True)
class Facts:
    """What is known of the server under test before the load; workers only read it (facts.json). None is: not known.

    `image_tokens` maps "1024x1024" to the prompt tokens one such image costs, `video_tokens` kinds of video to theirs.
    `capacity_tokens` is what the KV cache holds in all, `max_model_len` the longest sequence one request may have,
    `input_limit` the longest prompt the server should take where that is less (LMDeploy's blocks x block_size). `sources`
    says where each fact was learned.
    """

    base_url: str
    admin_url: str
    dialect: str
    model: str = ""
    version: str | None = None
    max_model_len: int | None = None
    input_limit: int | None = None
    capacity_tokens: int | None = None
    kv_blocks: int | None = None
    kv_block_size: int | None = None
    images: bool | None = None
    max_images: int | None = None
    image_tokens: Mapping[str, int] = field(default_factory=dict)
    videos: bool | None = None
    video_tokens: Mapping[str, int] = field(default_factory=dict)
    text: TextFacts | None = None
    speculative_decoding: bool | None = None
    development_endpoints: bool | None = None
    metrics: bool | None = None
    replicas: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A mapping that `json` takes and `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """Read back; unknown keys are ignored, so that an older reader reads a newer record."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        if values.get("text") is not None:
            text = {k: v for k, v in values["text"].items() if k in {f.name for f in fields(TextFacts)}}
            text["words"] = tuple((w, n) for w, n in text["words"])
            text["scripts"] = tuple((name, tuple((w, n) for w, n in words)) for name, words in text.get("scripts", ()))
            values["text"] = TextFacts(**text)
        values["replicas"] = tuple(values.get("replicas", ()))
        return cls(**values)


@dataclass(frozen=True)
class Output:
    """How long an answer is asked for: `max` is a cap, `exact` makes the server go on to that very length."""

    max: int | None = None
    exact: int | None = None


@slotted_dataclass(frozen=True)
class Step:
    """One request as the plan has it, before it is a request: same profile and seed, same steps.

    `due_s` counts from the begin of the phase (None in a closed phase: due when a slot is free). `payload` maps the
    names of payload shelves to their option models, `behaviour` is one name of the behaviour shelf with its options.
    `ordinal` counts the steps of this traffic within its phase from 0, and `run_seed` is the run's own seed: with them
    a step can name what an earlier one sent (an image that comes again).
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


@slotted_dataclass(frozen=True)
class Request:
    """A step's request, built for this server and not yet addressed to it.

    `tokens` are the prompt tokens the plan expects the server to count (None: unknown).
    `body` is the whole JSON body as bytes; `nonce` a word only this request has in its prompt; `edge` is the margin
    (prompt tokens minus limit) of a near-limit rung. `fitted` says in words what was reduced to fit the server.
    `exact` are the output tokens that the answer must have (None: as many as it likes up to `max_tokens`).
    `image_names` tell apart images and videos that may come again; those not named are new (None: nothing is known).
    """

    step: Step
    path: str
    body: bytes
    stream: bool
    tokens: int | None
    images: int = 0
    image_tokens: int = 0
    max_tokens: int | None = None
    nonce: str = ""
    edge: int | None = None
    expect: Sequence[Outcome] = ("ok",)
    fitted: str = ""
    exact: int | None = None
    image_names: Sequence[int] | None = ()
    videos: int = 0


@slotted_dataclass(frozen=True)
class Reply:
    """What one request came to, as the wire saw it; times are monotonic ns, None where it never happened.

    `itl_hist` is the sparse histogram of token-chunk gaps (stats.LogHistogram indices to counts). `detail` holds small
    facts beside the outcome (`{"reasoning_only": True}`, `{"code": 503}`), `evidence` later decisive events.
    """

    outcome: Outcome
    status: int | None = None
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_byte_ns: int | None = None
    end_ns: int = 0
    chunks: int = 0
    itl_hist: Mapping[int, int] = field(default_factory=dict)
    largest_gap_ns: int = 0
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    request_id: str | None = None
    error: str | None = None
    error_code: int | str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    evidence: Sequence[str] = ()
    bytes_in: int = 0
    bytes_out: int = 0
    text: str = ""


DEFAULT_EXPECT = ("failures == 0", "engine_deaths == 0", "hangs == 0", "ok_share >= 95%")
"""Expectations of a profile that states none."""


@dataclass(frozen=True)
class Terms:
    """What a verdict is judged by, taken out of the profile, so that the judge knows no profile.

    `expect` are texts such as "engine_deaths == 0"; `accept` entries have id, because, until, at_most; `requires` names
    mechanisms (images, speculative_decoding, development_endpoints, ...); `exposure` is {count, at_least} or None.
    """

    profile: str
    expect: Sequence[str] = ()
    accept: Sequence[Mapping[str, Any]] = ()
    requires: Sequence[str] = ()
    exposure: Mapping[str, Any] | None = None
    planned_requests: int | None = None
    attacks: Sequence[str] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """A mapping that `json` takes and `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Terms:
        """Read back; unknown keys are ignored."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in data.items() if k in known})
