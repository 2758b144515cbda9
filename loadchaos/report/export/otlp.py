"""Export the requests of a run as OpenTelemetry spans, over OTLP/HTTP. The spans are made from the ledger of a finished
run, so that the load does no work for them. Their ids are those of `traceparent`. They hold no prompt, no answer and no
error text. A failed export is reported and does not change the verdict. Attributes:
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from loadchaos.core import progress
from loadchaos.core.answer_labels import LABELS, labels_of
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.redact import Redactor
from loadchaos.core.session_ids import place_of
from loadchaos.core.traceparent import trace_ids
from loadchaos.core.urls import host_and_port
from loadchaos.core.version import __version__
from loadchaos.core.whole_file import read_json
from loadchaos.report.export.tables import RunClock
from loadchaos.report.formatting import plural

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

FROM_VARIABLES = "env"
"""Value of --otlp that leaves the receiver to the variables OTEL_EXPORTER_OTLP_*."""
_PATH = "/v1/traces"
_OWN_SESSION = "_CREDENTIAL_PROVIDER"
_BATCH = 512
_GAVE_UP = ("due to timeout, max retries or shutdown", "timeout cannot be set to a value less than or equal to 0")
"""Texts of the SDK for a timeout; it has the second where no time is left for a try."""
_TIMED_OUT = "the spans were not accepted within the timeout (OTEL_EXPORTER_OTLP_TIMEOUT, 10 s by default)"
_TRIED_AGAIN = re.compile(r"Transient error (.+) encountered while exporting")
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([A-Z][\w ]+)")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDED = {
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}
"""Module of each package that is needed; other exporters share `opentelemetry.exporter`."""
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
    if missing := [package for package, module in _NEEDED.items() if not _is_installed(module)]:
        raise OptionError(f"--otlp needs {' and '.join(missing)}: pip install 'loadchaos[otlp]'")
    url = given
    if given == FROM_VARIABLES:
        protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "http/protobuf")
        if protocol != "http/protobuf":
            raise OptionError(f"--otlp env: OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf was expected (got {protocol})")
        url = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "http://localhost:4318")
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:  # of the port, or of the brackets of an address
        fits = False
    if not fits:
        raise OptionError(
            f"--otlp {_shown(given)}: the URL of an OTLP/HTTP receiver was expected, e.g. http://127.0.0.1:4318, or env"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def export(folder: RunFolder, given: str, say: progress.Say | None = None) -> OtlpResult:
    """Send the spans of a run. Never raises for what the receiver does."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    receiver = _shown(next((os.environ[n] for n in _ENDPOINTS if os.environ.get(n)), "http://localhost:4318"))
    receiver = receiver if given == FROM_VARIABLES else _shown(given)
    sent = 0
    answers = _Answers()
    with _captured_log() as said:
        try:
            endpoint = None if given == FROM_VARIABLES else _with_path(given)
            exporter = OTLPSpanExporter(endpoint=endpoint, session=answers.session())
            every = spans(folder, say)
            while batch := list(islice(every, _BATCH)):
                if exporter.export(batch) is not SpanExportResult.SUCCESS:
                    return OtlpResult(sent, receiver, _reason(said, given))
                sent += len(batch)
            cast("Any", exporter).shutdown()
        except (LoadchaosError, OSError, ValueError, RuntimeError) as e:
            return OtlpResult(sent, receiver, _reason([*said, str(e)], given))
    if answers.rejected:
        return OtlpResult(sent, receiver, _reason([answers.message or "no reason given"], given), answers.rejected)
    return OtlpResult(sent, receiver)


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
        begun: dict[str, dict[str, Any]] = {}
        newest_ns = 0
        for row in progress.rows(Tail(path).rows(), "exporting", say):
            newest_ns = max(newest_ns, int(row.get("at_ns") or 0))
            if row.get("row") == "begin":
                begun[str(row["id"])] = row
            elif row.get("row") == "end" and (begin := begun.pop(str(row.get("id")), None)) is not None:
                yield maker.span(begin, row)
        for begin in begun.values():
            yield maker.span(begin, {"at_ns": newest_ns, "outcome": "unfinished"})


class _SpanMaker:
    def __init__(self, folder: RunFolder) -> None:
        self._clock = RunClock.of(folder)
        run, facts = _run_and_facts(folder)
        plan = read_json(folder.plan)
        traffic = (plan.get("profile") or {}).get("traffic") or ()
        self._endpoints = {t.get("name"): str(t.get("endpoint") or "chat") for t in traffic}
        self._streams = {t.get("name"): bool(t.get("stream", True)) for t in traffic}
        self._sessions = {t.get("name") for t in traffic if _is_live((t.get("payload") or {}).get("conversation"))}
        self._several_models = {
            t.get("name")
            for t in traffic
            if {"models", "adapters"} & set((t.get("payload") or {}).get("sampling") or ())
        }
        self._model = str(facts.get("model") or "")
        host, port = host_and_port(str((run.get("target") or {}).get("url") or facts.get("base_url") or ""))
        self._common: dict[str, Any] = {"gen_ai.provider.name": str(facts.get("dialect") or "unknown")}
        if host:
            self._common |= {"server.address": host, "server.port": port}
        self._resource = _resource(folder, run)

    def span(self, begin: Mapping[str, Any], end: Mapping[str, Any]) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        name, traffic = str(begin["id"]), begin.get("traffic")
        endpoint = self._endpoints.get(traffic, "chat")
        operation = _OPERATIONS.get(endpoint, endpoint)
        model = "" if traffic in self._several_models else self._model
        trace_id, span_id = trace_ids(name)
        failed = end.get("outcome") != "ok"
        return ReadableSpan(
            name=f"{operation} {model}".strip(),
            context=SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1)),
            resource=self._resource,
            attributes=self._attributes(begin, end, operation, model),
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=int(begin["at_ns"]) + self._clock.offset_ns,
            end_time=max(int(end["at_ns"]), int(begin["at_ns"])) + self._clock.offset_ns,
            instrumentation_scope=InstrumentationScope("loadchaos", __version__),
        )

    def _attributes(
        self, begin: Mapping[str, Any], end: Mapping[str, Any], operation: str, model: str
    ) -> dict[str, Any]:
        name, traffic = str(begin["id"]), str(begin.get("traffic"))
        place, outcome, first_ns = place_of(name), str(end.get("outcome")), end.get("first_token_ns")
        sent_ns, labels = int(end.get("sent_ns") or begin["at_ns"]), labels_of(end)
        found = {
            **self._common,
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": model or None,
            "gen_ai.request.max_tokens": begin.get("max_tokens"),
            "gen_ai.request.stream": self._streams.get(begin.get("traffic")),
            "gen_ai.response.id": end.get("request_id"),
            "gen_ai.response.finish_reasons": [end["finish_reason"]] if end.get("finish_reason") else None,
            **{label.attribute: labels.get(label.name) for label in LABELS if label.attribute},
            "gen_ai.response.time_to_first_chunk": (int(first_ns) - sent_ns) / 1e9 if first_ns else None,
            "gen_ai.usage.input_tokens": end.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": end.get("completion_tokens"),
            "gen_ai.usage.cache_read.input_tokens": end.get("cached_tokens"),
            "gen_ai.conversation.id": place.first
            if place.number or place.branch or traffic in self._sessions
            else None,
            "http.response.status_code": end.get("status"),
            "error.type": None if outcome == "ok" else outcome,
            "loadchaos.request": name,
            "loadchaos.outcome": outcome,
            "loadchaos.traffic": traffic,
            "loadchaos.phase": begin.get("phase"),
            "loadchaos.behaviour": begin.get("behaviour"),
            "loadchaos.images": begin.get("images") or None,
            "loadchaos.send_delay": (int(begin["at_ns"]) - int(begin["due_ns"])) / 1e9 if begin.get("due_ns") else None,
        }
        return {key: value for key, value in found.items() if value is not None}


def _is_live(conversation: object) -> bool:
    return isinstance(conversation, Mapping) and conversation.get("answers") == "live"


def _run_and_facts(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    run: dict[str, Any] = {}
    for row in Tail(folder.events).rows():
        if row.get("row") == "run" and row.get("what") == "begin":
            run = row
        elif row.get("row") == "facts" and row.get("facts"):
            return run, row["facts"]
    return run, {}


def _resource(folder: RunFolder, run: Mapping[str, object]) -> Resource:
    """Make the resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count first."""
    from opentelemetry.sdk.resources import Resource

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own = {"loadchaos.run": folder.path.resolve().name, "loadchaos.profile": str(run.get("profile") or "")}
    return Resource.create(own if named else {"service.name": "loadchaos", "service.version": __version__, **own})


def _with_path(url: str) -> str:
    return url if urlsplit(url).path.rstrip("/").endswith(_PATH) else url.rstrip("/") + _PATH


def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return Redactor().text(url[:80])
    if not parts.hostname:
        return Redactor().text(url[:80])
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _reason(said: Sequence[str], given: str) -> str:
    text = said[-1] if said else "the receiver did not accept the spans"
    if any(sign in text for sign in _GAVE_UP):  # also of the last of several tries, whose error is told before
        errors = [found[1] for line in said if (found := _TRIED_AGAIN.search(line))]
        text = errors[-1] if errors else _TIMED_OUT
        if found := _SYSTEM_ERROR.search(text):
            text = found[1]
    return Redactor().text(text.replace(given, _shown(given)))[:400]


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    said: list[str] = []

    class _Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger("opentelemetry"), _Collector()
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
