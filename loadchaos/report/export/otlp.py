"""Export the requests of a run as OpenTelemetry spans, over OTLP/HTTP. The spans are made from the ledger of a finished
run, so that the load does no work for them. Their ids are those of `traceparent`. They hold no prompt, no answer and no
error text. A failed export is reported and does not change the verdict. Attributes:
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Any, cast

from loadchaos.core import progress
from loadchaos.core.answer_labels import LABELS, labels_of
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.rows import BeginRow, EndRow, at_ns_of
from loadchaos.core.model import Facts
from loadchaos.core.redact import Redactor
from loadchaos.core.session_ids import place_of
from loadchaos.core.traceparent import trace_ids
from loadchaos.core.typed_json import from_json
from loadchaos.core.urls import host_and_port, http_parts
from loadchaos.core.version import __version__
from loadchaos.core.whole_file import read_json
from loadchaos.report.export.columns import Column, values_of
from loadchaos.report.export.tables import RunClock
from loadchaos.report.formatting import plural

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.util.types import Attributes

FROM_VARIABLES = "env"
"""Value of --otlp that leaves the receiver to the variables OTEL_EXPORTER_OTLP_*."""
_PATH = "/v1/traces"
_OWN_SESSION = "_CREDENTIAL_PROVIDER"
_BATCH = 512
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OPERATIONS = {
    "chat": "chat", "responses": "chat", "messages": "chat", "completions": "text_completion",
    "embeddings": "embeddings",
}  # fmt: skip
"""gen_ai.operation.name by endpoint; other endpoints have none of the convention and keep their own name."""


@dataclass(frozen=True)
class OtlpResult:
    """Result of an export; `rejected` spans were answered 200 and not taken."""

    sent: int
    receiver: str
    trouble: str = ""
    rejected: int = 0

    def describe(self) -> str:
        spans = plural(self.sent, "span")
        if self.rejected:
            return f"OTLP: {spans} sent to {self.receiver}, which rejected {self.rejected:,}: {self.trouble}"
        if self.trouble:
            return f"OTLP: {spans} sent to {self.receiver}, then the export failed: {self.trouble}"
        return f"OTLP: {spans} sent to {self.receiver}"


def check(given: str) -> None:
    """Check a value of --otlp and the installed packages, before a run. Raises OptionError."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as e:
        raise OptionError("--otlp needs packages of OpenTelemetry: pip install 'loadchaos[otlp]'") from e
    protocol = _first_of(_PROTOCOLS, "http/protobuf")
    if given == FROM_VARIABLES and protocol != "http/protobuf":
        raise OptionError(f"--otlp env: OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf was expected (got {protocol})")
    try:
        parts = http_parts(_receiver(given))
        fits = parts.port != 0 and not parts.query
    except ValueError:
        fits = False
    if not fits:
        raise OptionError(
            f"--otlp {Redactor().text(given)}: the URL of an OTLP/HTTP receiver was expected, "
            "e.g. http://127.0.0.1:4318, or env"
        )


def _first_of(variables: tuple[str, ...], default: str) -> str:
    return next((os.environ[name] for name in variables if os.environ.get(name)), default)


def _receiver(given: str) -> str:
    return _first_of(_ENDPOINTS, "http://localhost:4318") if given == FROM_VARIABLES else given


def export(folder: RunFolder, given: str, say: progress.Say | None = None) -> OtlpResult:
    """Send the spans of a run. Never raises for what the receiver does."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    redacted = Redactor().text
    receiver, sent, trouble, answers = redacted(_receiver(given)), 0, "", _Answers()
    with _captured_log() as said:
        try:
            endpoint = None if given == FROM_VARIABLES else given.rstrip("/").removesuffix(_PATH) + _PATH
            exporter = OTLPSpanExporter(endpoint=endpoint, session=answers.session())
            every = spans(folder, say)
            while not trouble and (batch := list(islice(every, _BATCH))):
                if exporter.export(batch) is SpanExportResult.SUCCESS:
                    sent += len(batch)
                else:  # the last of several tries only says that there is no time left
                    last = [record.getMessage() for record in said[-2:]]
                    trouble = " ".join(last) or "the receiver did not accept the spans"
            cast("Any", exporter).shutdown()
        except (LoadchaosError, OSError, ValueError, RuntimeError) as e:
            trouble = str(e)
    if answers.rejected and not trouble:
        return OtlpResult(sent, receiver, redacted(answers.message or "no reason given")[:400], answers.rejected)
    return OtlpResult(sent, receiver, redacted(trouble)[:400])


class _Answers:
    """Spans that a receiver rejects in its answers (`partial_success`). The exporter counts them as sent."""

    def __init__(self) -> None:
        self.rejected = 0
        self.message = ""

    def session(self) -> requests.Session | None:
        """Make a session that reads the answers. None where the user's variables make one of their own."""
        import requests

        if any(name.endswith(_OWN_SESSION) for name in os.environ):
            return None
        session = requests.Session()
        session.hooks["response"] = [self._read]
        return session

    def _read(self, response: requests.Response, *_: object, **__: object) -> None:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        if not response.ok:
            return
        try:
            found = ExportTraceServiceResponse.FromString(response.content).partial_success
        except DecodeError:  # some receivers answer with text
            return
        self.rejected += found.rejected_spans
        self.message = found.error_message or self.message


def spans(folder: RunFolder, say: progress.Say | None = None) -> Iterator[ReadableSpan]:
    maker = _SpanMaker(folder)
    for path in folder.request_files():
        begun: dict[str, BeginRow] = {}
        newest_ns = 0
        for row in progress.rows(Tail(path, fits_its_kind).rows(), "exporting", say):
            newest_ns = max(newest_ns, at_ns_of(row))
            if row["row"] == "begin":
                begun[row["id"]] = row
            elif row["row"] == "end" and (begin := begun.pop(row["id"], None)) is not None:
                yield maker.span(begin, row, row["at_ns"])
        for begin in begun.values():
            yield maker.span(begin, None, newest_ns)


# -- attributes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestSpan:
    """A request with all that its attributes are read from. `end` None: it has no end. `traffic`: its traffic in the
    profile of plan.json; empty where it is not in it.
    """

    begin: BeginRow
    end: EndRow | None
    traffic: Mapping[str, Any]
    facts: Facts
    address: tuple[str, int]

    @property
    def outcome(self) -> str:
        return "unfinished" if self.end is None else self.end.get("outcome")

    @property
    def operation(self) -> str:
        endpoint = str(self.traffic.get("endpoint") or "chat")
        return _OPERATIONS.get(endpoint, endpoint)

    @property
    def model(self) -> str:
        sampling = self._payload("sampling")
        return "" if sampling.get("models") or sampling.get("adapters") else self.facts.model

    def _payload(self, name: str) -> Mapping[str, Any]:
        return (self.traffic.get("payload") or {}).get(name) or {}

    def first_chunk_s(self) -> float | None:
        if self.end is None or not (first_ns := self.end.get("first_token_ns")):
            return None
        return (first_ns - (self.end.get("sent_ns") or self.begin["at_ns"])) / 1e9

    def conversation(self) -> str | None:
        place = place_of(self.begin["id"])
        is_session = self._payload("conversation").get("answers") == "live"
        return place.first if place.number or place.branch or is_session else None

    def send_delay_s(self) -> float | None:
        due_ns = self.begin.get("due_ns")
        return (self.begin["at_ns"] - due_ns) / 1e9 if due_ns else None

    def of_end(self, name: str) -> object:
        end: Mapping[str, object] = self.end or {}
        return end.get(name)


def _label(name: str) -> Callable[[RequestSpan], object]:
    return lambda s: None if s.end is None else labels_of(s.end).get(name)


def _of_end(name: str, meaning: str, key: str) -> Column[RequestSpan]:
    return Column(name, meaning, lambda s: s.of_end(key))


ATTRIBUTES: tuple[Column[RequestSpan], ...] = (
    Column("gen_ai.provider.name", "dialect of the server, such as `vllm`", lambda s: s.facts.dialect or "unknown"),
    Column("server.address", "host of the server", lambda s: s.address[0] or None),
    Column("server.port", "its port", lambda s: s.address[1] if s.address[0] else None),
    Column(
        "gen_ai.operation.name",
        "`chat`, `text_completion`, `embeddings`, or the name of another endpoint",
        lambda s: s.operation,
    ),
    Column("gen_ai.request.model", "model; none where a traffic has several", lambda s: s.model or None),
    Column("gen_ai.request.max_tokens", "limit of the answer", lambda s: s.begin.get("max_tokens")),
    Column(
        "gen_ai.request.stream",
        "whether a stream was asked for",
        lambda s: s.traffic.get("stream", True) if s.traffic else None,
    ),
    _of_end("gen_ai.response.id", "id that the server gave the request", "request_id"),
    Column(
        "gen_ai.response.finish_reasons",
        "finish_reason of the answer",
        lambda s: [reason] if (reason := s.of_end("finish_reason")) else None,
    ),
    *(
        Column(label.attribute, f"{label.title} of the answer", _label(label.name))
        for label in LABELS
        if label.attribute
    ),
    Column("gen_ai.response.time_to_first_chunk", "from the send to the first token, in s", RequestSpan.first_chunk_s),
    _of_end("gen_ai.usage.input_tokens", "prompt tokens as the server counted them", "prompt_tokens"),
    _of_end("gen_ai.usage.output_tokens", "completion tokens as the server counted them", "completion_tokens"),
    _of_end("gen_ai.usage.cache_read.input_tokens", "prompt tokens from its cache", "cached_tokens"),
    Column(
        "gen_ai.conversation.id",
        "id of its first request, for each request of a [session](agentic.md)",
        RequestSpan.conversation,
    ),
    _of_end("http.response.status_code", "HTTP status of the answer", "status"),
    Column(
        "error.type",
        "[outcome](../outcomes.md) of a request that was not `ok`; the span's status is then an error",
        lambda s: None if s.outcome == "ok" else s.outcome,
    ),
    Column("loadchaos.request", "request id", lambda s: s.begin["id"]),
    Column("loadchaos.outcome", "[outcome](../outcomes.md)", lambda s: s.outcome),
    Column("loadchaos.traffic", "name of the traffic in the profile", lambda s: s.begin.get("traffic")),
    Column("loadchaos.phase", "index of the load phase", lambda s: s.begin.get("phase")),
    Column("loadchaos.behaviour", "name of the client behaviour", lambda s: s.begin.get("behaviour")),
    Column("loadchaos.images", "images in the request", lambda s: s.begin.get("images") or None),
    Column("loadchaos.send_delay", "from the time that it was due until it was sent, in s", RequestSpan.send_delay_s),
)
"""Attributes of a span. One without a value is left out."""


class _SpanMaker:
    def __init__(self, folder: RunFolder) -> None:
        self._clock = RunClock.of(folder)
        plan = read_json(folder.plan)
        profile = plan.get("profile") or {}
        self._facts = from_json(Facts, read_json(folder.facts))
        self._traffic: Mapping[str, Mapping[str, Any]] = {one.get("name"): one for one in profile.get("traffic") or ()}
        self._address = host_and_port(plan.get("base_url") or self._facts.base_url)
        self._resource = _resource(folder, str(profile.get("name") or ""))

    def span(self, begin: BeginRow, end: EndRow | None, ended_ns: int) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        request = RequestSpan(begin, end, self._traffic.get(begin["traffic"], {}), self._facts, self._address)
        trace_id, span_id = trace_ids(begin["id"])
        found = values_of(ATTRIBUTES, request)
        return ReadableSpan(
            name=f"{request.operation} {request.model}".strip(),
            context=SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1)),
            resource=self._resource,
            attributes=cast("Attributes", {name: value for name, value in found.items() if value is not None}),
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.UNSET if request.outcome == "ok" else StatusCode.ERROR),
            start_time=begin["at_ns"] + self._clock.offset_ns,
            end_time=max(ended_ns, begin["at_ns"]) + self._clock.offset_ns,
            instrumentation_scope=InstrumentationScope("loadchaos", __version__),
        )


def _resource(folder: RunFolder, profile: str) -> Resource:
    """Make the resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count first."""
    from opentelemetry.sdk.resources import Resource

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own = {"loadchaos.run": folder.path.resolve().name, "loadchaos.profile": profile}
    return Resource.create(own if named else {"service.name": "loadchaos", "service.version": __version__, **own})


@contextmanager
def _captured_log() -> Iterator[list[logging.LogRecord]]:
    logger, handler = logging.getLogger("opentelemetry"), BufferingHandler(1000)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
