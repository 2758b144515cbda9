"""Declare every kind of ledger row: fields, units, meaning, writer, file.

One TypedDict for each kind, tagged by `row`, so that `if row["row"] == "end":` narrows `AnyRow` to `EndRow`. A field is
`NotRequired` when some rows of the kind leave it out. docs/ledger.md is generated from this module (`make docs`).

To add a kind: write its class here, add it to `AnyRow` and to its file in `FILES`, and run `make docs`.
"""

# No `from __future__ import annotations`: with it, __required_keys__ would not know NotRequired in Python 3.11.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeAlias,
    TypedDict,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from loadchaos.core.attack_names import AttackKind
from loadchaos.core.model import Attribution, Outcome, Severity, State


class Unit(str):
    """Unit of a field, first in its `Annotated` metadata, before its meaning."""

    __slots__ = ()


MOMENT = Unit("ns, moment")
"""A CLOCK_MONOTONIC time of the machine and boot that the header names; every other `ns` is a length of time."""
NS = Unit("ns")
S = Unit("s")
UTC_NS = Unit("ns since 1970")
BYTES = Unit("bytes")
TOKENS = Unit("tokens")
US_BEFORE = Unit("µs before at_ns")

GapHistogram = Mapping[int, int]
"""Counts by index of `core.histogram.bucket`; the index is an int in memory and a string in JSON."""
Column = int | None | list[int | None]
"""One value for each request of a `well` row, or a single value when all requests share it."""
MomentColumn = Annotated[Column, US_BEFORE]

MissReason = Literal["no_slot", "server_down", "stopped", "worker_lost"]
BeginOrEnd = Literal["begin", "end"]
ConversationEnd = Literal["finished", "lost", "left", "cut"]
RunEvent = Literal["begin", "load_begin", "checkpoint", "load_end", "interrupted", "end"]
WorkerEvent = Literal[
    "joined", "awaited", "begin", "refused", "spare", "late", "absent", "slow", "lost", "back", "left", "failed"
]
AttackEvent = Literal["begin", "end", "undo", "skipped"]
LaunchEvent = Literal["start", "ready", "kill", "exit", "end"]
ProcessEvent = Literal["seen", "gone", "sample"]
LogLoss = Literal["certain", "possible"]
AlarmEvent = Literal["listening", "ending", "failing", "dead"]
OrchestratorEvent = Literal["seen", "ended", "started"]
ControlEvent = Literal["pause", "few", "resume", "stop", "by_hand", "compact", "full"]
CommandEvent = Literal["start", "users", "attack", "stop"]
QuestionPart = Literal[
    "probes", "replicas", "cold_warm", "reference", "streamed", "images", "adapters", "prefix_ladder"
]
QuestionTime = Literal["idle", "busy", "load", "after"]
SessionEvent = Literal["web", "search", "run", "load", "load_over", "over"]


class _FromFile(TypedDict):
    file: NotRequired[Annotated[str, "file the reader took the row from; added on reading, never written"]]


class _At(TypedDict):
    at_ns: Annotated[int, MOMENT, "when it happened"]


class _Row(_FromFile, _At):
    """Fields of nearly all rows."""


class _ReplicaRow(_Row):
    replica: Annotated[str, "name of the replica"]


class _TrafficRow(_Row):
    phase: Annotated[int, "index of the load phase"]
    traffic: Annotated[str, "name of the traffic in the profile"]


class _RequestRow(_TrafficRow):
    id: Annotated[str, "request id, unique in the run; sent as X-Request-Id"]
    step: Annotated[int, "index of the request in the plan"]
    due_ns: Annotated[int, MOMENT, "when the plan wanted it sent; TTFT counts from here"]
    images: Annotated[int, "images in the request"]
    image_tokens: Annotated[int, TOKENS, "planned prompt tokens of the images"]
    image_file: NotRequired[Annotated[str, "name of the file of a hostile image"]]
    expect: Annotated[list[Outcome], "outcomes that are right for this request"]
    edge: Annotated[int | None, TOKENS, "prompt tokens minus the limit, for near-limit requests"]
    folded: NotRequired[Annotated[bool, "true when the reader made the row from a `well` row"]]
    tries: NotRequired[Annotated[int, "times that it was refused with 429 before, and sent again (`on_429: wait`)"]]


# --- first row of every file ------------------------------------------------------------------------------------------


class HeaderRow(_FromFile):
    """First row of every file and of every part.

    `mono_ns` and `utc_ns` are one moment on both clocks. Written by core/ledger/writer.py.
    """

    row: Literal["header"]
    schema: Annotated[int, "version of the row format"]
    writer: Annotated[
        str, "process that writes the file: `run`, `locust-<w>`, `locust-master`, `keeper`, `follower`, `web`"
    ]
    pid: Annotated[int, "process id of the writer"]
    boot_id: NotRequired[Annotated[str, "boot of the machine that monotonic times belong to; empty: unknown"]]
    mono_ns: Annotated[int, MOMENT, "monotonic clock when the file was opened"]
    utc_ns: Annotated[int, UTC_NS, "wall clock at the same moment"]
    host: NotRequired[Annotated[str, "host name of a worker on another machine"]]
    source: NotRequired[Annotated[str, "where a watched log comes from, as `--server-log` names it"]]


# --- requests -----------------------------------------------------------------------------------------------------------


class BeginRow(_RequestRow):
    """Start of a request; `at_ns` is when it is sent.

    The row reaches the file before the first byte leaves. A request that `pipeline` sends behind another has the id
    of that one with `.1`, `.2` and so on, and one that is sent again after a 429 its first id with `-t1`, `-t2` and so on. A
    begin without an end is counted as `unfinished`. Written by load/worker/recorder.py.
    """

    row: Literal["begin"]
    round: Annotated[int, "repetition of the phase, from 0"]
    conn: NotRequired[Annotated[int, "number of the connection"]]
    reused: NotRequired[Annotated[bool, "true when the connection had served a request before"]]
    len: NotRequired[Annotated[int, BYTES, "length of the body"]]
    crc: NotRequired[Annotated[int, "CRC-32 of the body; only in folders of earlier versions"]]
    hash: NotRequired[Annotated[str, "XXH3 of the body, 64 bits as hex"]]
    tokens: Annotated[int | None, TOKENS, "planned prompt tokens; null: unknown"]
    videos: NotRequired[Annotated[int, "videos in the request"]]
    image_names: NotRequired[
        Annotated[Sequence[int] | None, "numbers of images and videos that may be sent again; null: unknown"]
    ]
    audio: NotRequired[Annotated[int, "audio files in the request"]]
    max_tokens: Annotated[int | None, TOKENS, "limit of the answer; null: none was sent"]
    behaviour: Annotated[str, "name of the client behaviour (`plain`, `abort`, ...)"]
    seed: NotRequired[Annotated[int, "seed the body is built from"]]
    fitted: NotRequired[Annotated[str, "what was reduced to fit the server; empty: nothing"]]


class WrongPart(TypedDict):
    """Wrong part of an answer. Texts are excerpts."""

    id: Annotated[str, "id of the failure"]
    text: Annotated[str, "what is wrong"]
    expected: NotRequired[Annotated[str, "the rule that was broken"]]
    got: NotRequired[Annotated[str, "the answer or the part of it that is wrong"]]
    other: NotRequired[Annotated[str, "id of the other request whose text it holds"]]


class AnswerContent(TypedDict, total=False):
    """Content of an ok answer, as far as its text alone tells it."""

    odd: Annotated[
        Literal["control_characters", "special_tokens", "copies_prompt"], "what the text is, and nothing else"
    ]
    hash: Annotated[str, "hash of its words, or vectors, that no other prompt should get"]
    begin: Annotated[str, "begin of an odd text, or of one that came before"]
    id: Annotated[str, "id in the body of an answer with a `hash`, where `request_id` is another one, of a header"]
    rule: Annotated[
        Literal["checked", "cut", "no_room"],
        "whether it was held to the schema of its request, or `no_room`: the profile gives too few tokens for one",
    ]
    quoted: Annotated[bool, "whether it has the secret word that it was ordered to repeat"]


class EndRow(_RequestRow):
    """End of a request with its outcome; `at_ns` is when it ended.

    Written by load/wire/exchange.py.
    """

    row: Literal["end"]
    sent_ns: Annotated[int | None, MOMENT, "when its first byte was sent; null: it was not"]
    outcome: Annotated[Outcome, "outcome of the request"]
    status: Annotated[int | None, "HTTP status; null: no answer came"]
    first_byte_ns: Annotated[int | None, MOMENT, "first byte of the answer"]
    first_token_ns: Annotated[int | None, MOMENT, "first token; TTFT is this minus due_ns"]
    first_answer_ns: Annotated[int | None, MOMENT, "first token that is not reasoning"]
    last_byte_ns: Annotated[int | None, MOMENT, "last byte of the answer"]
    last_token_ns: NotRequired[
        Annotated[int | None, MOMENT, "newest token of an answer that was given up while bytes without a token came"]
    ]
    without_token: NotRequired[
        Annotated[int, "of such an answer: comments and events without a token (`: ping`, empty deltas, a role)"]
    ]
    chunks: Annotated[int, "stream events that carried tokens"]
    itl_hist: Annotated[
        GapHistogram,
        "gaps between chunks: counts by `core.histogram.bucket` of nanoseconds; of an interrupted answer also the open "
        "one where it is the longest",
    ]
    largest_gap_ns: Annotated[int, NS, "largest gap between two chunks"]
    finish_reason: Annotated[str | None, "finish_reason of the answer"]
    prompt_tokens: Annotated[int | None, TOKENS, "prompt tokens as the server counted them"]
    completion_tokens: Annotated[int | None, TOKENS, "completion tokens as the server counted them"]
    cached_tokens: Annotated[int | None, TOKENS, "prompt tokens the server took from its cache"]
    request_id: Annotated[str | None, "id the server gave the request"]
    error: Annotated[str | None, "error text of the answer or of the connection"]
    error_code: Annotated[int | str | None, "error code of the answer's body"]
    detail: Annotated[Mapping[str, Any], "facts beside the outcome (`slowed`, `stale_retry`, `resent`, `why`, ...)"]
    evidence: Annotated[list[str], "outcomes of later decisive events"]
    bytes_in: Annotated[int, BYTES, "bytes received"]
    bytes_out: Annotated[int, BYTES, "bytes sent"]
    planned_tokens: Annotated[int | None, TOKENS, "planned prompt tokens; null: unknown"]
    asked_tokens: NotRequired[
        Annotated[int, TOKENS, "prompt tokens that the profile asks for, where `planned_tokens` are unknown"]
    ]
    length_mismatch: Annotated[bool, "true when the server counted other prompt tokens than planned"]
    drafted_tokens: NotRequired[Annotated[int, TOKENS, "tokens that speculative decoding drafted for this answer"]]
    accepted_tokens: NotRequired[Annotated[int, TOKENS, "of these, tokens that the server accepted"]]
    exact_tokens: Annotated[int | None, TOKENS, "answer length that `output: {exact}` asked for"]
    most_tokens: NotRequired[
        Annotated[int | None, TOKENS, "the same for a server that cannot be asked for it: the answer may be shorter"]
    ]
    labels: NotRequired[Annotated[Mapping[str, str], "labels at its top (`service_tier`, `system_fingerprint`)"]]
    wrong: NotRequired[
        Annotated[Sequence[WrongPart], "wrong parts of the answer: `id`, `text`, `expected`, `got`, `other`"]
    ]
    signs: NotRequired[
        Annotated[
            Sequence[str],
            "unusual properties of the text, judged by their share; `ignores_eos`: its request had `ignore_eos`",
        ]
    ]
    text_ratio: NotRequired[
        Annotated[float | None, "compressed size of the last 256 characters, relative to their size"]
    ]
    content: NotRequired[
        Annotated[
            AnswerContent, "of an ok answer: `odd`, `hash`, `begin`, `rule`, `quoted`, each only where it applies"
        ]
    ]
    gaps_ns: NotRequired[
        Annotated[int | None, NS, "of a folded row: sum of its own gaps; `itl_hist` is that of several"]
    ]


class MissedRow(_TrafficRow):
    """Count of requests that were due and never sent. Written by load/worker/recorder.py; for lost workers by
    load/cluster/master.py and load/cluster/lost_workers.py.
    """

    row: Literal["missed"]
    why: Annotated[MissReason, "reason"]
    count: Annotated[int, "requests"]


class WellRow(_Row):
    """Successful requests of about a second in columns. It replaces their rows while disk space is low. The reader
    turns it into begin and end rows, marked `folded`. `prefix` and `step` make the ids; a value that all requests share
    is written once. Written by core/ledger/batch.py.
    """

    row: Literal["well"]
    n: Annotated[int, "requests in the row"]
    prefix: Annotated[str, "request ids without their step"]
    traffic: Annotated[str, "name of the traffic"]
    phase: Annotated[int, "index of the load phase"]
    round: Annotated[int, "repetition of the phase"]
    behaviour: Annotated[str, "name of the client behaviour"]
    max_tokens: Annotated[int | None, TOKENS, "limit of the answers"]
    finish_reason: Annotated[str | None, "finish_reason of the answers"]
    status: Annotated[int | None, "HTTP status of the answers"]
    labels: NotRequired[Annotated[Mapping[str, str], "labels of the answers, as in `end`"]]
    step: Annotated[Column, "indices in the plan"]
    chunks: Annotated[Column, "stream events that carried tokens"]
    prompt_tokens: Annotated[Column, TOKENS, "as in `end`"]
    completion_tokens: Annotated[Column, TOKENS, "as in `end`"]
    cached_tokens: Annotated[Column, TOKENS, "as in `end`"]
    drafted_tokens: NotRequired[Annotated[Column, TOKENS, "as in `end`"]]
    accepted_tokens: NotRequired[Annotated[Column, TOKENS, "as in `end`"]]
    tokens: Annotated[Column, TOKENS, "as in `begin`"]
    images: Annotated[Column, "as in `begin`"]
    image_tokens: Annotated[Column, TOKENS, "as in `begin`"]
    bytes_in: Annotated[Column, BYTES, "as in `end`"]
    bytes_out: Annotated[Column, BYTES, "as in `end`"]
    due_us: Annotated[MomentColumn, "due_ns of the requests"]
    sent_us: Annotated[MomentColumn, "at_ns of their begin rows"]
    first_byte_us: Annotated[MomentColumn, "first_byte_ns"]
    first_token_us: Annotated[MomentColumn, "first_token_ns"]
    first_answer_us: Annotated[MomentColumn, "first_answer_ns"]
    last_byte_us: Annotated[MomentColumn, "last_byte_ns"]
    at_us: Annotated[MomentColumn, "at_ns of their end rows"]
    gaps_ns: NotRequired[Annotated[Column, NS, "sum of the gaps between chunks of each request"]]
    itl_hist: Annotated[GapHistogram, "gaps between chunks of all requests together"]
    largest_gap_ns: Annotated[int, NS, "largest gap of all requests"]


class CallText(TypedDict):
    """Tool call of an answer."""

    id: Annotated[str, "id of the call"]
    name: Annotated[str, "name of the tool"]
    arguments: Annotated[str, "arguments as JSON"]


class AnswerRow(_Row):
    """Answer that a conversation with `answers: live` sends back. Later bodies are built from it. Written by
    load/worker/sessions.py.
    """

    row: Literal["answer"]
    id: Annotated[str, "request id"]
    text: Annotated[str, "text of the answer, without reasoning"]
    calls: Annotated[Sequence[CallText], "tool calls that got a result: `id`, `name`, `arguments`"]


class ConversationRow(_TrafficRow):
    """Begin or end of a session: a conversation with `answers: live`. A begin without an end is counted as unfinished.
    Written by load/worker/sessions.py.
    """

    row: Literal["conversation"]
    what: Annotated[BeginOrEnd, "event"]
    id: Annotated[str, "id of its first request; later ones have `-r1`, in a continuation `-b2r1`, after it"]
    step: Annotated[int, "index of the session in the plan"]
    due_ns: Annotated[int, MOMENT, "when its first request was due; the time of a session counts from here"]
    planned_turns: Annotated[int, "questions of the session"]
    end: NotRequired[
        Annotated[
            ConversationEnd,
            "`finished`; `lost`: an answer was not ok; `left`: we did not send the rest; `cut`: it had no room",
        ]
    ]
    why: NotRequired[Annotated[str, "outcome of the lost answer, `server_down`, `stopped` or `aborted`; may be empty"]]
    turns: NotRequired[Annotated[int, "questions that got their answer"]]
    turns_lost: NotRequired[Annotated[int, "questions that were lost with an answer that was not ok"]]
    turns_left: NotRequired[Annotated[int, "questions that we did not send"]]
    turns_cut: NotRequired[Annotated[int, "questions without room in the context"]]
    requests: NotRequired[Annotated[int, "requests of the session"]]
    tool_calls: NotRequired[Annotated[int, "tool calls that got a result"]]
    bad_calls: NotRequired[Annotated[int, "tool calls whose arguments are no JSON object, or were cut"]]
    think_ns: NotRequired[Annotated[int, NS, "time between answers and next questions, of all continuations"]]
    tools: NotRequired[Annotated[str, "begin: `tool_choice` of the requests, where the session has tools"]]


class HeartbeatRow(_Row):
    """Counters and gauges of a worker, every 250 ms. Written by load/worker/recorder.py."""

    row: Literal["heartbeat"]
    in_flight: Annotated[int, "requests sent and not ended"]
    tokens: Annotated[int, TOKENS, "stream events with tokens since the last heartbeat"]
    bytes: Annotated[int, BYTES, "bytes received since the last heartbeat"]
    oldest_silence_ns: Annotated[int, NS, "longest time that a request in flight has received nothing"]
    lag_ns: Annotated[int, NS, "largest delay of the worker's own dispatcher"]
    users: Annotated[int, "Locust users"]
    begun: Annotated[int, "requests begun so far"]
    ended: Annotated[int, "requests ended so far"]
    aborted: Annotated[int, "requests that either side aborted so far"]
    backed_off: NotRequired[Annotated[int, "pauses of users after instant errors so far"]]
    images_in_prefill: Annotated[int, "image requests in flight that have received nothing yet"]
    cpu_share: Annotated[float, "share of one core that the worker used"]
    waiting_tokens: NotRequired[Annotated[int, TOKENS, "planned prompt tokens of requests without a first token"]]
    stream_silences_ns: NotRequired[
        Annotated[list[int], NS, "the three longest times that an answer in flight that streams had no token"]
    ]


class PhaseRow(_Row):
    """Start or end of a round of a load phase on this worker. Written by load/worker/recorder.py."""

    row: Literal["phase"]
    phase: Annotated[int, "index of the load phase"]
    round: Annotated[int, "repetition of the phase, from 0"]
    what: Annotated[BeginOrEnd, "event"]


StreamReader = Literal["native", "python"]
"""Reader of the streams of a worker: the extension, where it was built, or Python alone."""


class LoadRow(_Row):
    """Start or end of the load of this worker. Written by load/worker/dispatcher.py, and by
    campaigns/watch/proxy_load.py for the requests of others.
    """

    row: Literal["load"]
    what: Annotated[BeginOrEnd, "event"]
    reader: NotRequired[Annotated[StreamReader, "begin: what reads streams without TLS"]]
    why: NotRequired[Annotated[str, "why it ended (`done`, `stopped`, ...)"]]
    code: NotRequired[Annotated[int | None, "end: exit code of the command that was the load; negative: its signal"]]
    not_read: NotRequired[Annotated[Mapping[str, int], "end: connections to the proxy that were not read, by reason"]]
    reported: NotRequired[
        Annotated[Mapping[str, Any], "end: what the command reported in its result file (core/reported_figures.py)"]
    ]


class WorkerRow(_Row):
    """State of a worker on another machine, as its master knows it. Written by load/cluster/master.py."""

    row: Literal["worker"]
    what: Annotated[WorkerEvent, "event"]
    worker: Annotated[int | None, "number of the worker; null: of all workers"]
    host: Annotated[str | None, "its host"]
    why: Annotated[str, "explanation; may be empty"]


class ClockRow(_Row):
    """Clock offset of a worker on another machine, about once a minute. Written by load/cluster/worker_link.py."""

    row: Literal["clock"]
    offset_ns: Annotated[int, NS, "added to the worker's own monotonic times to give the master's"]
    rtt_ns: Annotated[int | None, NS, "round trip it was measured by; the error is at most half of it"]


class HostRow(_Row):
    """CPU time and swapping of the machine of loadchaos in the last seconds. Written by server/monitor/host.py."""

    row: Literal["host"]
    seconds: Annotated[float, S, "length of this time"]
    cpus: Annotated[int, "number of its CPUs"]
    busy: Annotated[float, "share of the CPU time that was not idle"]
    steal: Annotated[float, "share of the CPU time that the hypervisor gave to others"]
    periods: Annotated[int, "periods of the CPU limit of our cgroup; 0: it has none"]
    throttled: Annotated[int, "periods in which the limit was reached"]
    swapped_bytes: Annotated[int, BYTES, "memory that was written to swap space or read from it"]
    governor: NotRequired[Annotated[str, "policy for the frequency of the CPUs"]]
    others: NotRequired[
        Annotated[
            float, "share of the CPU time of processes that are neither ours nor the server's; missing: not known"
        ]
    ]


class DiskRow(_Row):
    """Change of free space on the disk of the run folder. Written by run/run_record.py, and by
    load/worker/dispatcher.py on another machine.
    """

    row: Literal["disk"]
    what: Annotated[Literal["low", "enough"], "event"]
    free_bytes: Annotated[int, BYTES, "free space"]
    text: Annotated[str, "the same for people"]


# --- events -------------------------------------------------------------------------------------------------------------


class RunDetail(_FromFile, total=False):
    """Fields that only some `run` rows have."""

    profile: Annotated[str, "begin: name of the profile"]
    argv: Annotated[Sequence[str], "begin: command line, redacted"]
    version: Annotated[str, "begin: version of loadchaos"]
    target: Annotated[Mapping[str, object], "begin: `kind` and `url` of the server"]
    seed: Annotated[int | None, "begin: seed of the run; null: it sent no load of its own"]
    duration_s: Annotated[float | None, S, "begin: duration asked for with `-t`"]
    server_logs: Annotated[Sequence[str], "begin: logs given with `--server-log`"]
    terms: Annotated[Mapping[str, object], "begin: what the verdict is judged by"]
    resumes: Annotated[str | None, "begin: run folder that this run continues"]
    n: Annotated[int, "checkpoint: its number"]
    begun: Annotated[int, "checkpoint: requests begun so far"]
    outcomes: Annotated[Mapping[str, int], "checkpoint: requests by outcome so far"]
    step: Annotated[int, "checkpoint: highest step begun"]
    rss_bytes: Annotated[int, BYTES, "checkpoint: memory of the run process"]
    shortened: Annotated[bool, "load_end: true when the load was ended before its plan was done"]
    aborted: Annotated[str | None, "load_end: rule of `abort_when` that ended the load, with its figures"]
    cut: Annotated[str | None, "load_end: what ended the load before its plan was done, unless its plan has that end"]
    signal: Annotated[str, "interrupted: name of the signal"]
    exit_code: Annotated[int, "end: exit code that an error or a signal demands"]
    why: Annotated[str, "end: what went wrong"]
    ledger_lost: Annotated[str, "end: why the ledger could not be written"]


class RunRow(_At, RunDetail):
    """Step of the run process. Written by the parts of run/ through core/ledger/recorder.py."""

    row: Literal["run"]
    what: Annotated[RunEvent, "event; `checkpoint` comes each hour of load"]


class ProbeRow(_ReplicaRow):
    """Health check of one replica on a connection of its own. Written by server/monitor/health_probe.py."""

    row: Literal["probe"]
    what: Annotated[Literal["tcp", "health"], "a TCP connect, or GET /health"]
    ok: Annotated[bool, "true when it succeeded"]
    status: Annotated[int | None, "HTTP status; null for tcp or when no answer came"]
    took_ns: Annotated[int, NS, "duration"]
    error: Annotated[str | None, "error; null: none"]
    body: Annotated[str | None, "start of the answer when it is not ok"]
    path: NotRequired[Annotated[str, "path of the page that was asked for health"]]


_From = TypedDict("_From", {"from": Annotated[State, "state before"]})  # `from` is a keyword: no class can declare it


class StateRow(_ReplicaRow, _From):
    """Change of state of a replica or of one of its engines. Written by analysis/state/machine.py and
    analysis/state/engines.py in the run process.
    """

    row: Literal["state"]
    engine: Annotated[str | None, "label of the engine; null: the whole replica"]
    to: Annotated[State, "state from now on; equal to `from` for a note"]
    signs: Annotated[list[str], "evidence for people"]
    since_ns: Annotated[int | None, MOMENT, "when the first evidence appeared"]
    noticed_after_s: Annotated[float | None, S, "time from the first evidence to this row"]
    balanced: NotRequired[Annotated[bool, "true when one address has proved to be several servers"]]
    outage: NotRequired[Annotated[bool, "true when every request fails, and nothing shows why"]]
    said: NotRequired[Annotated[bool, "true when only texts of answers or log lines show that it is dying"]]


class AttackDetail(_FromFile, total=False):
    """Fields of an `attack` row that depend on the kind of attack."""

    pid: Annotated[int | None, "process: the process that is signalled"]
    signal: Annotated[int, "process: the signal"]
    processes: Annotated[int, "host: busy processes started"]
    order: Annotated[Any, "engine: the fault that the plugin injects"]
    toxic: Annotated[Mapping[str, object], "network: the fault in the path"]


class AttackRow(_ReplicaRow, AttackDetail):
    """Act of an attack. Written by chaos/injector.py. An attack fired in the web UI has a negative `n`."""

    row: Literal["attack"]
    attack: Annotated[str, "name of the attack"]
    kind: Annotated[AttackKind, "kind of the attack"]
    n: Annotated[int, "number of the act, from 1"]
    what: Annotated[AttackEvent, "event"]
    ok: Annotated[bool | None, "whether it worked; null: unknown or not over"]
    status: Annotated[int | None, "HTTP status of an admin call"]
    text: Annotated[str, "answer or reason"]
    effects: Annotated[list[str], "what it may do to the server (`paused`, `terminated`, ...)"]
    took_ns: Annotated[int | None, NS, "duration"]


class FactsRow(_Row):
    """Facts about the server, learned before the load; equal to facts.json. Written by run/prepare.py."""

    row: Literal["facts"]
    facts: Annotated[Mapping[str, object], "fields of `core.model.Facts`"]


class DiscoveryRow(_Row):
    """Requests that identified and measured the server before the load. Written by run/prepare.py."""

    row: Literal["discovery"]
    reads: Annotated[int, "pages and tokenizer calls"]
    generations: Annotated[int, "requests that run the model"]
    remembered: Annotated[int, "requests that an earlier run on this server sent, and this one did not"]


class ConfigurationRow(_Row):
    """Configuration of the server before the load. Written by run/prepare.py."""

    row: Literal["configuration"]
    flags: Annotated[str | None, "flags as the server's log prints them"]
    settings: Annotated[Mapping[str, Any], "settings under our names"]
    system: Annotated[Mapping[str, str], "GPU, driver and versions"]


class LaunchDetail(_FromFile, total=False):
    """Fields that only some `launch` rows have."""

    code: Annotated[int | None, "exit: exit code"]
    signal: Annotated[int | None, "exit: signal that ended it"]
    asked: Annotated[bool, "kill, exit: true when the run ended it"]
    gpu_memory_freed: Annotated[bool, "end: true when its GPU memory is free again"]


class LaunchRow(_ReplicaRow, LaunchDetail):
    """Start or end of a server that the run launched. With `on_death: restart` each life has its own `start` and
    `exit`. Written by server/process/launcher.py.
    """

    row: Literal["launch"]
    what: Annotated[LaunchEvent, "event"]
    pid: Annotated[int | None, "process id of the server"]
    command: Annotated[Sequence[str], "command line, redacted"]
    reason: Annotated[str, "explanation; may be empty"]


class ProcessRow(_ReplicaRow):
    """Sample of a server process on this machine. Written once a second, and when a process starts or ends. Written by
    server/monitor/processes.py.
    """

    row: Literal["process"]
    pid: Annotated[int, "process id"]
    role: Annotated[str, "`api_server`, `engine_core`, `worker` or `other`"]
    what: Annotated[ProcessEvent, "event"]
    state: Annotated[str, "R running, S sleeping, D disk wait, T stopped, Z ended"]
    cpu_s: Annotated[float, S, "CPU time so far"]
    rss_bytes: Annotated[int, BYTES, "resident memory"]
    threads: Annotated[int | None, "threads; null: unknown"]
    fds: Annotated[int | None, "open file descriptors; null: unknown"]
    fd_limit: Annotated[int | None, "how many it may open; null: unknown"]
    name: Annotated[str, "title, redacted"]


class GapRow(_Row):
    """Gap in the observation, or lost data.

    Written by server/monitor/gaps.py.
    """

    row: Literal["gap"]
    replica: Annotated[str, "name of the replica; empty: a machine"]
    source: Annotated[str, "what could not be observed (`scrape`, `log`, `supervisor`, ...)"]
    seconds: Annotated[float, S, "how long so far; 0: a single loss"]
    why: Annotated[str, "reason; `over` when it ends"]
    loss: NotRequired[
        Annotated[LogLoss, "log: `certain` when a part of it is missing for good, `possible` when one may be"]
    ]


class PreflightRow(_Row):
    """Check before the load. Written by server/discovery/preflight.py."""

    row: Literal["preflight"]
    name: Annotated[str, "name of the check"]
    ok: Annotated[bool, "true when it passed"]
    text: Annotated[str, "result for people"]


class LocustRow(_Row):
    """Start or exit of the load process. Written by run/children.py and run/web_session.py."""

    row: Literal["locust"]
    what: Annotated[Literal["start", "exit"], "event"]
    pid: Annotated[int | None, "process id"]
    code: Annotated[int | None, "exit code; negative: a signal"]


class GateRow(_Row):
    """Pause or resumption of the load. Written by run/pause_gate.py."""

    row: Literal["gate"]
    open: Annotated[bool, "true when the load continues"]
    why: Annotated[str, "reason"]


class HeardRow(_ReplicaRow):
    """Log line that shows a server ending, failing or dead. It comes before the death itself is judged. Written by
    server/monitor/log_alarms.py.
    """

    row: Literal["heard"]
    what: Annotated[AlarmEvent, "event; `listening` when the log was opened"]
    text: Annotated[str, "the line"]


class SupervisorRow(_ReplicaRow):
    """Status of the server from docker, Kubernetes or systemd. Written by server/monitor/orchestrators.py."""

    row: Literal["supervisor"]
    source: Annotated[str, "as given with `--server-log`"]
    what: Annotated[OrchestratorEvent, "event"]
    running: Annotated[bool, "true when it runs now"]
    exit_code: Annotated[int | None, "exit code of the last end"]
    signal: Annotated[int | None, "signal of the last end"]
    oom_killed: Annotated[bool | None, "true when the last end was an OOM kill"]
    restarts: Annotated[int | None, "restarts so far"]
    reason: Annotated[str, "explanation; may be empty"]


class BaselineRow(_Row):
    """Answer of the idle server to a request like those of the load. Written by run/answer_baseline.py."""

    row: Literal["baseline"]
    traffic: Annotated[str, "name of the traffic"]
    outcome: Annotated[str, "`ok`, or what went wrong"]
    completion_tokens: Annotated[int | None, TOKENS, "as in `end`"]
    signs: Annotated[Sequence[str], "as in `end`"]
    text_ratio: Annotated[float | None, "as in `end`; null: the text is too short"]


class CanaryRow(_Row):
    """Canary request: a small prompt with a known answer, or its answer. Written by server/monitor/canary.py."""

    row: Literal["canary"]
    what: Annotated[Literal["ask", "answer"], "event"]
    n: Annotated[int, "number of the question"]
    kind: Annotated[Literal["exact", "echo"], "`exact`: one right answer; `echo`: a word is to be repeated"]
    when: Annotated[Literal["idle", "load"], "before or during the load"]
    word: Annotated[str, "echo: the word; else empty"]
    status: NotRequired[Annotated[int, "answer: HTTP status; 0: no answer came"]]
    text: NotRequired[Annotated[str, "answer: text"]]
    error: NotRequired[Annotated[str, "answer: error; empty: none"]]


class LastQuestionRow(_Row):
    """Small chat request after the load of a short run, or its answer. Short runs are those of a hunt, a replay and the
    minimiser. An answer that was not waited for has no row: the server hangs. Written by run/last_question.py.
    """

    row: Literal["last_question"]
    what: Annotated[Literal["ask", "answer"], "event"]
    status: NotRequired[Annotated[int, "answer: HTTP status; 0: no answer came"]]
    error: NotRequired[Annotated[str, "answer: error; empty: none"]]


class IdentityRow(_Row):
    """Version and model that an external server tells, once and whenever they differ. Written by
    server/monitor/identity.py.
    """

    row: Literal["identity"]
    named: Annotated[Mapping[str, str], "`version`, and `model`: its entry in /v1/models"]


class QuestionRow(_Row):
    """Question beside the load and its answer; `at_ns` is when it ended. Questions of one `group` are compared with
    each other. Written by server/probes/ask.py.
    """

    row: Literal["question"]
    sent_ns: Annotated[int, MOMENT, "when it was sent"]
    n: Annotated[int, "number of the question"]
    group: Annotated[int, "number of the group"]
    part: Annotated[QuestionPart, "what it is asked for, as in `correctness` of a profile; `reference` calibrates"]
    kind: Annotated[str, "kind of question, such as `copy`; of the part `images` the number in the image"]
    when: Annotated[
        QuestionTime, "`idle` and `busy` (several at once): before the load; `load`: beside it; `after`: after it"
    ]
    role: Annotated[
        str, "cold, warm, after_aborts, streamed, whole, again, same, neighbour, uuid, anew, new; empty: none"
    ]
    model: Annotated[str, "model or adapter that was asked for"]
    prompt: Annotated[str, "text of the user's message, shortened"]
    hash: Annotated[str, "hash of the whole message"]
    image_names: NotRequired[Annotated[Sequence[int], "numbers of its images: equal for equal bytes, or an equal uuid"]]
    expected: Annotated[str, "the right answer; empty: unknown"]
    status: Annotated[int, "HTTP status; 0: no answer came"]
    text: Annotated[str, "text of the answer"]
    error: Annotated[str, "error; empty: none"]
    finish: NotRequired[Annotated[str | None, "finish_reason"]]
    tokens: NotRequired[Annotated[Sequence[str], "tokens of the answer, where the server gives logprobs"]]
    gaps: NotRequired[Annotated[Sequence[float], "for each token: its logprob minus that of the next likely token"]]
    prompt_tokens: NotRequired[Annotated[int | None, TOKENS, "prompt, from usage"]]
    completion_tokens: NotRequired[Annotated[int | None, TOKENS, "answer, from usage"]]
    cached_tokens: NotRequired[Annotated[int | None, TOKENS, "prompt tokens from the prefix cache; null: not reported"]]
    remembered: NotRequired[Annotated[bool, "true: asked by an earlier run on this server, and not again"]]


class LearnedRow(_Row):
    """Kind of question after it was asked on the idle server, or part that is not asked. Written by
    server/probes/parts/base.py.
    """

    row: Literal["learned"]
    kind: Annotated[str, "kind of question, or part of `correctness` that is off"]
    used: Annotated[bool, "true when every answer was right"]
    exact: Annotated[bool, "true when every answer was the expected text and nothing else"]
    asked: Annotated[int, "questions"]
    right: Annotated[int, "right answers"]
    why: Annotated[str, "why it is not used; empty: it is used"]
    remembered: NotRequired[Annotated[bool, "true: learned by an earlier run on this server"]]


class OffersRow(_Row):
    """Attacks that the web UI has buttons for. Written by run/web_commands.py."""

    row: Literal["offers"]
    refused: Annotated[str | None, "why attacks are refused; null: they are not"]
    offers: Annotated[Sequence[Mapping[str, object]], "fields of `chaos.manual.Offer`"]


class CommandDetail(_FromFile, total=False):
    """Fields that only some `command` rows have."""

    users: Annotated[int, "start, users: users asked for"]
    rate: Annotated[float, "start, users: users started in a second"]
    planned: Annotated[int, "start, users: users of the profile"]
    edited: Annotated[bool, "start, users: true when they differ from the profile"]
    kind: Annotated[str | None, "attack: its kind"]
    name: Annotated[str | None, "attack: its name"]
    title: Annotated[str | None, "attack: its title on the page"]
    params: Annotated[Any, "attack: its parameters"]
    ok: Annotated[bool, "answer: true when it was obeyed"]
    text: Annotated[str, "answer: result for people"]


class CommandRow(_At, CommandDetail):
    """Button pressed in the web UI, or the answer to it. The answer is in events.jsonl and has `ok` and `text`. Written
    by load/webui/extension.py and run/web_commands.py.
    """

    row: Literal["command"]
    what: Annotated[CommandEvent, "event"]
    n: Annotated[int, "number of the command; its answer has the same"]


# --- metrics ------------------------------------------------------------------------------------------------------------


class MetricsRow(_ReplicaRow):
    """Metrics of one engine, by scrape. Names are the same for all dialects. Written by
    server/monitor/scraper.py.
    """

    row: Literal["metrics"]
    engine: Annotated[str, "label of the engine"]
    took_ns: Annotated[int, NS, "duration of the scrape"]
    values: Annotated[Mapping[str, float], "`requests_running`, `kv_usage_ratio`, `generation_tokens_total`, ..."]


class PageRow(TypedDict):
    """Raw metrics page that was kept.

    Pages are kept at the start and every 10 minutes. Written by server/monitor/scraper.py.
    """

    row: Literal["page"]
    replica: Annotated[str, "name of the replica"]
    why: Annotated[str, "`start` or `periodic`"]
    at_ns: Annotated[int, MOMENT, "when it happened"]
    file: Annotated[str, "path below the run folder; a reader replaces it by the file it took the row from"]


class DeviceRow(_Row):
    """Metrics of one device of a machine under the server. Written by server/monitor/device_exporters.py and
    server/nvml.py.
    """

    row: Literal["device"]
    source: Annotated[Literal["dcgm", "node", "nvml"], "where they come from"]
    host: Annotated[str, "address of the exporter; `here`: this machine"]
    device: Annotated[str, "`gpu0`, `host`, `disk /models`, ..."]
    name: NotRequired[Annotated[str, "nvml: name of the GPU"]]
    values: Annotated[Mapping[str, float], "`gpu_memory_used_bytes`, `gpu_xid_last`, `host_oom_kills_total`, ..."]


# --- control, logs, findings, the web UI --------------------------------------------------------------------------------


class ControlRow(_Row):
    """Order of the run to its workers. Written by core/ledger/recorder.py."""

    row: Literal["control"]
    what: Annotated[ControlEvent, "order; few: one request in 0.5 s; compact, full: form of the request rows"]
    why: Annotated[str, "reason"]
    grace_s: NotRequired[Annotated[float, S, "stop: how long requests in flight may go on"]]


class LinesRow(_Row):
    """Piece of a log, in the index of the log.

    The row is written before the bytes it describes. Written by server/indexed_log.py.
    """

    row: Literal["lines"]
    offset: Annotated[int, BYTES, "where the piece begins in the log file"]
    bytes: Annotated[int, BYTES, "length of the piece"]
    source: Annotated[str, "where the log comes from"]


class LogRow(_FromFile):
    """Line of a server log with its time of arrival. No file holds it: the reader makes it from log and index. Made by
    core/ledger/reader.py.
    """

    row: Literal["log"]
    at_ns: Annotated[int | None, MOMENT, "when the line arrived; null: unknown"]
    source: Annotated[str, "where the log comes from"]
    line: Annotated[int, "line number, from 1"]
    text: Annotated[str, "the line"]


class FailureRow(_Row):
    """Failure with its counts so far. The other fields are those of `failures` in verdict.json
    (`analysis.verdict.model.FailureResult`). Written by analysis/judge.py in the follower.
    """

    row: Literal["failure"]
    id: Annotated[str, "id of the failure"]
    severity: Annotated[Severity, "severity"]
    title: Annotated[str, "one line for people"]
    attribution: Annotated[Attribution, "who caused it"]
    incident: NotRequired[Annotated[str | None, "name of its incident folder"]]
    incidents: NotRequired[Annotated[Sequence[str], "deaths: incident folders"]]
    final: NotRequired[Annotated[bool, "deaths: true once all its incidents are closed"]]


class IncidentRow(_Row):
    """Start or end of an incident. `id` and `folder` are final when it closes. Written by
    analysis/incidents/incident.py in the follower.
    """

    row: Literal["incident"]
    what: Annotated[Literal["open", "close"], "event"]
    n: Annotated[int, "number of the incident"]
    id: Annotated[str, "id of the failure"]
    folder: Annotated[str, "name of the incident folder"]
    kind: Annotated[str, "`failure`, `death`, `hang`, `restart`, `unreachable` or `terminated`"]
    replica: Annotated[str | None, "name of the replica"]
    state: Annotated[str | None, "worst state"]


class ExporterRow(_Row):
    """Port at which the follower serves /metrics. Written by run/follower.py."""

    row: Literal["exporter"]
    port: Annotated[int | None, "port; null: it could not be opened"]
    error: NotRequired[Annotated[str, "why not"]]


class SessionDetail(_FromFile, total=False):
    """Fields that only some `session` rows have."""

    folder: Annotated[str, "run, load, over: the run folder; search: folder of a capacity search"]
    profile: Annotated[str, "web: name of the profile"]
    about: Annotated[str, "web: description of the profile; search: its answer in a few words"]
    target: Annotated[str, "web: URL of the server"]
    users: Annotated[int, "web: users of the profile"]
    processes: Annotated[int, "web: load processes"]
    exit_code: Annotated[int | None, "over: exit code of the run"]
    error: Annotated[str | None, "over: what went wrong"]
    verdict: Annotated[str | None, "over: verdict of the run"]


class SessionRow(_At, SessionDetail):
    """Step of a web UI session, which may drive several runs. Written by run/web_session.py to the session's own
    folder.
    """

    row: Literal["session"]
    what: Annotated[SessionEvent, "event"]


AnyRow: TypeAlias = (
    HeaderRow | BeginRow | EndRow | MissedRow | WellRow | AnswerRow | ConversationRow | HeartbeatRow | PhaseRow | LoadRow
    | WorkerRow | ClockRow
    | DiskRow | HostRow | RunRow | ProbeRow | StateRow | AttackRow | FactsRow | DiscoveryRow | ConfigurationRow | LaunchRow
    | ProcessRow | GapRow | PreflightRow | LocustRow | GateRow | HeardRow | SupervisorRow | BaselineRow | CanaryRow
    | LastQuestionRow | IdentityRow | QuestionRow | LearnedRow | OffersRow | CommandRow | MetricsRow | PageRow | DeviceRow
    | ControlRow | LinesRow | LogRow | FailureRow | IncidentRow | ExporterRow | SessionRow
)  # fmt: skip
"""A row of any kind; `row` tells them apart."""

Emit = Callable[[AnyRow], None]
"""Accepts a row of a monitor or an attack; the caller decides which file it goes to."""


@dataclass(frozen=True)
class LedgerFile:
    """File of the run folder, its writer, and its kinds of row."""

    name: str
    writer: str
    rows: tuple[type, ...]


FILES = (
    LedgerFile("requests-<w>.jsonl", "load worker `w`", (
        BeginRow, EndRow, MissedRow, WellRow, AnswerRow, ConversationRow, HeartbeatRow, PhaseRow, LoadRow,
        ClockRow, DiskRow,
    )),
    LedgerFile("requests-master.jsonl", "the Locust master of several workers", (WorkerRow, MissedRow)),
    LedgerFile("events.jsonl", "the run process", (
        RunRow, ProbeRow, StateRow, AttackRow, FactsRow, DiscoveryRow, ConfigurationRow, LaunchRow, ProcessRow, GapRow,
        PreflightRow,
        LocustRow, GateRow, HeardRow, SupervisorRow, BaselineRow, CanaryRow, LastQuestionRow, IdentityRow, QuestionRow,
        LearnedRow, OffersRow, CommandRow, DiskRow, HostRow,
    )),
    LedgerFile("metrics.jsonl", "the run process", (MetricsRow, PageRow, DeviceRow)),
    LedgerFile("control.jsonl", "the run process; workers obey it", (ControlRow,)),
    LedgerFile("server.index.jsonl", "the supervisor of a launched server; the log itself is `server.log`", (LinesRow,)),
    LedgerFile("watch/logs/<label>.index.jsonl", "the run process, for each `--server-log`; the log is `<label>.log`",
               (LinesRow,)),
    LedgerFile("findings.jsonl", "the follower", (FailureRow, IncidentRow, ExporterRow)),
    LedgerFile("commands.jsonl", "the web UI's process; the run process obeys it", (CommandRow,)),
    LedgerFile("session.jsonl", "the run process, in the web UI session's own folder", (SessionRow,)),
)  # fmt: skip
"""Files and the kinds of rows in them. LogRow is in no file: the reader makes it."""

KINDS: Mapping[str, type] = {get_args(get_type_hints(kind)["row"])[0]: kind for kind in get_args(AnyRow)}
"""The class of each kind of row, by its tag."""


@dataclass(frozen=True)
class RowField:
    """Field of a row: type without metadata, unit (empty: none), meaning."""

    name: str
    type: Any
    unit: str
    meaning: str
    required: bool


def fields_of(kind: type) -> list[RowField]:
    """List the fields of a kind of row, optional ones last. The tag and the field that a reader adds are left out."""
    found = []
    required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]  # every TypedDict has it
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name == "row" or (name == "file" and name not in required):
            continue
        hint = get_args(hint)[0] if get_origin(hint) is NotRequired else hint
        plain, *metadata = get_args(hint)
        unit = next((m for m in metadata if isinstance(m, Unit)), "")
        found.append(RowField(name, plain, unit, str(metadata[-1]), name in required))
    return sorted(found, key=lambda one: not one.required)


def at_ns_of(row: AnyRow) -> int:
    """Time of a row; that of a header is when its file was opened. 0: unknown."""
    return (row["mono_ns"] if row["row"] == "header" else row.get("at_ns")) or 0


def as_typed(row: Mapping[str, object]) -> AnyRow:
    """Give a row from JSON its type; only the tag is made sure of."""
    return cast("AnyRow", row if "row" in row else {**row, "row": ""})


def is_pipelined(begin: Mapping[str, object]) -> bool:
    """Tell whether a request was sent behind another one by `pipeline`. The plan has one step for all of them."""
    return "." in str(begin.get("id"))
