"""Define `Dialect`: all knowledge about one kind of server. It holds values and pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loadchaos.core.http_answer import HttpAnswer
from loadchaos.core.model import Outcome
from loadchaos.core.outcome_rules import OutcomeRules


@dataclass(frozen=True)
class AdminOperation:
    """One operation of the server's admin API. `gate`: how to turn it on. `effects`: ids of failures and names of
    outcomes that it may cause, `effects_when`: more of them for a parameter value, keyed like "mode=abort". `undo`
    reverts it. `since`: first server version. `get_acts`: a GET of the path acts too. `allowed`: the only values of a
    parameter. `empties_a_cache`: it is called between two tries on a server that they share.
    """

    name: str
    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    gate: str = ""
    effects: Sequence[str] = ()
    undo: str | None = None
    destructive: bool = True
    body: Mapping[str, object] | None = None
    effects_when: Mapping[str, Sequence[str]] = field(default_factory=dict)
    since: str = ""
    limit_s: float = 30.0
    get_acts: bool = False
    allowed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    empties_a_cache: bool = False

    def is_newer_than(self, version: str | None) -> bool:
        """True where a server of this version does not have it yet. A range found by its paths (`0.9 to 0.15`) is no
        version that could be too old.
        """
        needed, present = version_key(self.since), version_key(version)
        return needed is not None and present is not None and " " not in (version or "") and present < needed

    def effects_with(self, params: Mapping[str, str]) -> list[str]:
        found = list(self.effects)
        for name, value in {**self.params, **params}.items():
            found += self.effects_when.get(f"{name}={value}", ())
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class MetricName:
    """One of our metric names (`SERVER` in report/metrics/metric_table.py) and the server's for it, newest first.
    `part`: "_count" or "_sum" of a histogram. `label`: read it instead of the value
    (`cache_config_info{num_gpu_blocks="21"} 1`).
    """

    ours: str
    theirs: Sequence[str]
    part: str = ""
    label: str = ""


@dataclass(frozen=True)
class DetectionSign:
    """A GET response that is a sign of a dialect. It has one of `statuses`, and `json_key` in its JSON object if that
    is given.
    """

    path: str
    statuses: Sequence[int] = (200,)
    weight: int = 1
    json_key: str = ""


@dataclass(frozen=True)
class Era:
    """Versions below `before` differ in `changes` (fields of Dialect). The oldest era that fits wins."""

    before: str
    changes: Mapping[str, object]


@dataclass(frozen=True)
class ServerSettings:
    """Settings by our names, and descriptions of the machine by label."""

    values: Mapping[str, object] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)


VersionBounds = tuple[str | None, str | None]
"""Lowest version that fits (or None), and the first version that does not (or None)."""
Limits = Mapping[str, int]
"""Fields of `Facts`: the lengths (kv_blocks, max_model_len, step_tokens and others), and speculative_decoding as a bool."""


SLOWEST_GAUGES_S = 10.0
"""Age in seconds that a gauge of any healthy server may have; for code that runs before the dialect is known."""


@dataclass(frozen=True)
class Dialect:
    """Everything that differs from one kind of server to another. Regexes are searched in the server's text as it was
    sent. Only `name` and `title` are required.
    """

    name: str
    title: str

    # --- detection ---
    owned_by: str = ""
    """`owned_by` of its models in /v1/models."""
    metrics_prefix: str = ""
    """Start of its metric names, such as "vllm:"."""
    signs: Sequence[DetectionSign] = ()
    version_page: tuple[str, str] | None = ("/version", "version")
    """A page and the key of its JSON object that tell the version; None where none does."""
    version_bounds: Callable[[Mapping[str, HttpAnswer]], VersionBounds] = lambda _: (None, None)
    """Version range by the probed pages, for a server that does not tell its version."""
    command_word: str = ""
    """A word of the command line that starts it; "" if there is none."""
    default_port: int = 8000
    repository: str = ""
    """Its GitHub repository, as known issues name it."""

    # --- endpoints ---
    health_knows_death: bool = True
    """False where /health is a constant."""
    endpoint_paths: Mapping[str, str] = field(default_factory=dict)
    """Paths of endpoints (load/endpoints) that differ from the usual ones."""
    metrics_path: str | None = "/metrics"
    metrics: Sequence[MetricName] = ()
    metrics_refresh_s: float = 0.0
    """Age in seconds a gauge may have on a healthy server, at most SLOWEST_GAUGES_S."""
    sends_done: bool = True
    """Streams end with `data: [DONE]`."""
    keeps_streams: bool = True
    """False where it closes the connection after a stream without `Connection: close`: it is not used again."""
    admin: Mapping[str, AdminOperation] = field(default_factory=dict)
    development_gate: str = ""
    """Instruction that turns on the admin endpoints."""
    development_path: str | None = None
    """A POST endpoint among them: a GET answers 405 where it exists and 404 where not."""

    # --- refusals and lengths ---
    validation: Sequence[re.Pattern[str]] = ()
    """Texts of a refusal that is the client's fault (outcome `rejected`, 4xx only)."""
    refusal_statuses: frozenset[int] = frozenset()
    """Statuses that mean "the client's fault" by themselves, with a JSON error object: only for unknown servers."""
    shed: Sequence[re.Pattern[str]] = ()
    """Texts of admission control."""
    over_length: Sequence[Outcome] = ("rejected",)
    """Outcomes of a prompt that is too long."""
    context_fits: bool = True
    """False where a prompt within the context may still be too long, because the KV cache is smaller."""
    answer_beyond_prompt: int = 0
    """With `context_fits` false: tokens by which prompt and answer together may exceed the longest prompt."""
    length_flag: str = ""
    """The option of its command that sets the context length."""
    capacity_flag: str = ""
    """The options of its command that set the size of the KV cache."""
    size_flags: Sequence[str] = ()
    """Options of its command with a number that bounds a cache or the batch."""
    switches: Sequence[str] = ()
    """Options of its command that turn a feature off, or limit it to the least: likely remedies of a failure."""
    length_failure: str = ""
    """Failure id of a server error that only prompts above the KV cache's capacity get."""
    exact_output: Mapping[str, str] = field(default_factory=dict)
    """Body fields that make an answer exactly N tokens long: field -> "true" or "tokens" (put N)."""
    regex_field: str = ""
    """Body field that asks for an answer by a regex: `structured_outputs`, `response_format`, or one that holds it."""
    guides_tools: bool = False
    """A required tool call is generated by the tool's schema, so that its arguments always follow it."""

    # --- death ---
    engine_dead: Sequence[re.Pattern[str]] = ()
    """Texts (answer or log) that say the engine is gone. No other cause produces them."""
    engine_unavailable: Sequence[re.Pattern[str]] = ()
    """Texts of an answer that a dead engine produces, and other faults as well: no proof of death."""
    health_dead: Sequence[re.Pattern[str]] = ()
    """Texts of a /health with status 500 or 503 that say the engine is gone."""
    health_hung: Sequence[re.Pattern[str]] = ()
    """Texts of a failing /health that say the engine makes no progress."""
    log_dead: Sequence[re.Pattern[str]] = ()
    """Texts that only the log has for an engine that is gone, beside `engine_dead`: the alarm within a second. The name
    of the death comes from a signature (loadchaos/analysis/signatures/): add the text there too.
    """
    log_shutdown: Sequence[re.Pattern[str]] = ()
    """Texts of the log for a shutdown on request."""

    # --- settings and counting ---
    limits_page: str = ""
    """The path whose text `limits` reads."""
    limits: Callable[[str, str | None], Limits] = lambda _text, _version: {}
    """Length limits by the text of `limits_page` and the version; {} where it does not say."""
    log_limits: Callable[[str, str | None], Limits] = lambda _text, _version: {}
    """Length limits by the first lines of the log and the version."""
    limits_source: str = ""
    """Name of the place `limits` reads, as shown to users; "" is `limits_page`."""
    draft_counter: re.Pattern[str] | None = None
    """A metric that /metrics shows only with speculative decoding."""
    metrics_settings: Callable[[str], Mapping[str, tuple[Any, str]]] = lambda _: {}
    """Settings by our names and their source, from the text of /metrics."""
    settings_path: str = ""
    """An endpoint that tells the settings; with `development_path` it is one of the development endpoints."""
    read_settings: Callable[[Any], ServerSettings] = lambda _: ServerSettings()
    """Settings by the JSON of `settings_path`."""
    log_flags: Sequence[re.Pattern[str]] = ()
    """Log lines in which it prints the flags of its start: group "flags"."""
    log_version: str = ""
    """Regex of a log line with its version as the first group."""
    token_counters: Sequence[str] = ("tokenize", "render", "encode")
    """Endpoints that count tokens, likeliest first (server/discovery/token_counters.py)."""
    prompt_counters: Sequence[str] = ()
    """Those of them that count a whole prompt with its images, likeliest first."""
    process_roles: Sequence[tuple[re.Pattern[str], str]] = ()
    """Regex over a process's title and command line -> its role in `process` rows."""
    kv_gauge: Literal["", "requests", "requests and cache"] = ""
    """Blocks that the KV gauge counts: those of requests, or of the prefix cache as well; "" if not known."""
    prefix_cache_flag: tuple[str, str] | None = None
    """(command word, option): a server started by this word caches prefixes only with this option."""

    eras: Sequence[Era] = ()

    def __post_init__(self) -> None:
        if self.metrics_refresh_s > SLOWEST_GAUGES_S:
            raise ValueError(
                f"{self.name}: metrics_refresh_s is above {SLOWEST_GAUGES_S:g} (got {self.metrics_refresh_s})"
            )

    @property
    def engine_failure(self) -> tuple[re.Pattern[str], ...]:
        """Texts of an answer that may come from a dead engine, proof or not."""
        return (*self.engine_dead, *self.engine_unavailable)

    @property
    def outcome_rules(self) -> OutcomeRules:
        return OutcomeRules(
            validation=self.validation,
            shed=self.shed,
            engine_dead=self.engine_failure,
            plain_validation=self.refusal_statuses,
            sends_done=self.sends_done,
        )

    def at(self, version: str | None) -> Dialect:
        """Return this dialect as `version` speaks it. None or an unreadable version is the newest."""
        key = version_key(version)
        if key is None:
            return self
        for era in sorted(self.eras, key=lambda e: version_key(e.before) or ()):
            before = version_key(era.before)
            if before is not None and key < before:
                return replace(self, **era.changes)  # type: ignore[arg-type]  # fields of this class
        return self


def version_key(version: str | None) -> tuple[int, ...] | None:
    """Version numbers for comparison: `"0.22.1.post2+cpu"` is (0, 22, 1). Returns None without a leading number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(n) for n in match[1].split(".")) if match else None


def patterns(*texts: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in texts)
