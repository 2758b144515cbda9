"""Spans of a run at a real OTLP/HTTP receiver on this machine."""

import gzip
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.traceparent import traceparent
from loadchaos.report.export import otlp
from tests.http_server import Asked, answering
from tests.invoking import output_of

pytest.importorskip("opentelemetry.exporter", reason="pip install 'loadchaos[otlp]'")

MS = 1_000_000
SECRET = "sk-secret-of-ours"
PROFILE = {
    "name": "t",
    "traffic": [
        {"name": "text", "payload": {"text": {}}},
        {"name": "agent", "payload": {"conversation": {"answers": "live"}}},
        {"name": "vectors", "endpoint": "embeddings", "payload": {"text": {}}},
        {"name": "lora", "payload": {"sampling": {"models": {"a": 1}}}},
    ],
    "load": [{"users": 1, "requests": 1}],
}


@dataclass
class Receiver:
    """An OTLP/HTTP receiver: reads protobuf, answers with `status`."""

    url: str = ""
    status: int = 200
    answer: bytes = b""
    batches: list[Any] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def reply(self, asked: Asked) -> tuple[int, object]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        gzipped = asked.headers.get("Content-Encoding") == "gzip"
        self.requests.append((asked.path, asked.headers))
        if self.status == 200:
            body = gzip.decompress(asked.content) if gzipped else asked.content
            self.batches.append(ExportTraceServiceRequest.FromString(body))
        return self.status, self.answer

    def spans(self) -> dict[str, Any]:
        """Spans by the id of their request, with `found` attributes."""
        every = [s for b in self.batches for r in b.resource_spans for scope in r.scope_spans for s in scope.spans]
        return {attributes(s.attributes)["loadchaos.request"]: s for s in every}


def attributes(pairs: Any) -> dict[str, Any]:
    def value(v: Any) -> Any:
        kind = v.WhichOneof("value")
        return [value(x) for x in v.array_value.values] if kind == "array_value" else getattr(v, kind)

    return {pair.key: value(pair.value) for pair in pairs}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    it = Receiver()
    with answering(it.reply) as it.url:
        yield it


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "t-1")
    folder.path.mkdir()
    folder.plan.write_text(json.dumps({"profile": PROFILE, "seed": 3, "base_url": "http://10.0.0.1:8000"}))
    folder.facts.write_text(json.dumps({"model": "org/tiny", "dialect": "vllm"}))
    events = Writer(folder.events, "run")
    events.write({"row": "run", "what": "load_begin", "at_ns": 3})
    rows = Writer(folder.requests(0), "worker")
    answered = {
        "outcome": "ok", "status": 200, "sent_ns": 110 * MS, "first_token_ns": 150 * MS, "prompt_tokens": 64,
        "completion_tokens": 8, "cached_tokens": 48, "finish_reason": "stop", "request_id": "chatcmpl-1",
        "labels": {"service_tier": "flex"},
    }  # fmt: skip
    failed = {"outcome": "http_error", "status": 500, "sent_ns": 110 * MS, "error": f"prompt {SECRET}", "detail": {}}
    for name, traffic, end in (
        ("lc-7-0", "text", answered), ("lc-7-4", "agent", answered), ("lc-7-4-b2r1", "agent", answered),
        ("lc-7-1", "vectors", failed),
        ("lc-7-2", "lora", answered), ("lc-7-3", "text", None),
    ):  # fmt: skip
        step = int(name.split("-")[2])
        base = {"id": name, "step": step, "traffic": traffic, "phase": 0}
        rows.write(
            {"row": "begin", **base, "at_ns": 110 * MS, "due_ns": 100 * MS, "max_tokens": 32, "behaviour": "plain"}
        )
        if end is not None:
            rows.write({"row": "end", **base, "at_ns": 400 * MS, **end})
    rows.write({"row": "answer", "id": "lc-7-0", "at_ns": 401 * MS, "text": f"a prompt of {SECRET}", "calls": []})
    return folder


def test_otlp_spans_have_the_ids_of_traceparent_and_the_times_of_the_requests(
    run: RunFolder, receiver: Receiver
) -> None:
    result = otlp.export(run, receiver.url)
    assert (result.sent, result.trouble) == (6, "")
    assert result.describe() == f"OTLP: 6 spans sent to {receiver.url}"
    assert [path for path, _ in receiver.requests] == ["/v1/traces"]
    header = json.loads(run.events.read_text().splitlines()[0])
    offset = header["utc_ns"] - header["mono_ns"]
    for name, span in receiver.spans().items():
        assert f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" == traceparent(name)
        assert span.start_time_unix_nano == 110 * MS + offset
    assert receiver.spans()["lc-7-0"].end_time_unix_nano == 400 * MS + offset


def test_otlp_attributes_follow_the_genai_convention(run: RunFolder, receiver: Receiver) -> None:
    otlp.export(run, receiver.url)
    found = {name: attributes(span.attributes) for name, span in receiver.spans().items()}
    assert found["lc-7-0"] == {
        "gen_ai.provider.name": "vllm", "server.address": "10.0.0.1", "server.port": 8000, "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "org/tiny", "gen_ai.request.max_tokens": 32, "gen_ai.request.stream": True,
        "gen_ai.response.id": "chatcmpl-1", "gen_ai.response.finish_reasons": ["stop"],
        "openai.response.service_tier": "flex",
        "gen_ai.response.time_to_first_chunk": 0.04, "gen_ai.usage.input_tokens": 64, "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 48, "http.response.status_code": 200, "loadchaos.request": "lc-7-0",
        "loadchaos.outcome": "ok", "loadchaos.traffic": "text", "loadchaos.phase": 0, "loadchaos.behaviour": "plain",
        "loadchaos.send_delay": 0.01,
    }  # fmt: skip
    assert (found["lc-7-1"]["error.type"], found["lc-7-1"]["gen_ai.operation.name"]) == ("http_error", "embeddings")
    assert [found[n]["gen_ai.conversation.id"] for n in ("lc-7-4", "lc-7-4-b2r1")] == ["lc-7-4", "lc-7-4"], (
        "the first one, too"
    )
    assert "gen_ai.request.model" not in found["lc-7-2"], "which adapter it asked for is not recorded"
    assert found["lc-7-3"]["error.type"] == "unfinished"
    (resource,) = {r.resource.SerializeToString() for b in receiver.batches for r in b.resource_spans}
    named = attributes(receiver.batches[0].resource_spans[0].resource.attributes)
    assert (named["service.name"], named["loadchaos.run"], named["loadchaos.profile"]) == ("loadchaos", "t-1", "t")
    kinds = {(s.kind, s.status.code) for s in receiver.spans().values()}
    assert kinds == {(3, 0), (3, 2)}, "clients; only failed ones are errors"
    assert resource


def test_otlp_spans_hold_no_prompt_answer_or_error_text(run: RunFolder, receiver: Receiver) -> None:
    otlp.export(run, receiver.url)
    assert not any(SECRET.encode() in batch.SerializeToString() for batch in receiver.batches)


def test_otlp_variables_name_receiver_headers_and_service(
    run: RunFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
    otlp.check("env")
    assert otlp.export(run, "env").describe() == f"OTLP: 6 spans sent to {receiver.url}"
    ((path, headers),) = receiver.requests
    assert (path, headers["x-tenant"], headers["Content-Encoding"]) == ("/v1/traces", "blue", "gzip")
    assert attributes(receiver.batches[0].resource_spans[0].resource.attributes)["service.name"] == "nightly"


def test_otlp_export_that_fails_says_why_and_raises_nothing(
    run: RunFolder,
    receiver: Receiver,
    unused_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    receiver.status = 403
    refused = otlp.export(run, receiver.url.replace("http://", "http://me:hidden@"))
    assert refused.sent == 0
    assert "403" in refused.trouble
    assert "hidden" not in refused.describe()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    receiver.status = 503
    assert "Service Unavailable" in otlp.export(run, receiver.url).trouble
    nobody = otlp.export(run, f"http://127.0.0.1:{unused_port}")
    assert nobody.sent == 0
    assert nobody.describe().startswith(
        f"OTLP: 0 spans sent to http://127.0.0.1:{unused_port}, then the export failed: "
    )
    assert "Connection refused" in nobody.trouble
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = otlp.export(run, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "timed out" in slow.trouble or "timeout" in slow.trouble
    assert capfd.readouterr().err == "", "the SDK's own log is not printed"


def test_otlp_spans_that_the_receiver_rejects_are_told(run: RunFolder, receiver: Receiver) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    answer.partial_success.error_message = "too old"
    receiver.answer = answer.SerializeToString()
    found = otlp.export(run, receiver.url)
    assert (found.sent, found.rejected, found.trouble) == (6, 2, "too old")
    assert found.describe() == f"OTLP: 6 spans sent to {receiver.url}, which rejected 2: too old"
    receiver.answer = b"{}"
    assert otlp.export(run, receiver.url).trouble == "", "an answer of text says nothing"


@pytest.mark.parametrize(
    "given",
    [
        "127.0.0.1:4318",
        "ftp://h",
        "grpc://h:4317",
        "http://h:99999",
        "http://h:abc",
        "http://[::1",
        "http://h:4318?key=sk-abc",
    ],
)
def test_otlp_url_is_checked_before_the_run(given: str) -> None:
    with pytest.raises(OptionError, match="the URL of an OTLP/HTTP receiver was expected"):
        otlp.check(given)


def test_otlp_tells_before_the_run_that_a_package_is_missing() -> None:
    """Also beside another exporter, whose package shares `opentelemetry.exporter`."""
    code = (
        "import sys; sys.modules['opentelemetry.exporter.otlp.proto.http'] = None\n"
        "from loadchaos.cli.main import main; main(['run', 'smoke', '--embedded', '--otlp', 'http://127.0.0.1:4318'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "loadchaos: --otlp needs packages of OpenTelemetry: pip install 'loadchaos[otlp]'\n"


def test_otlp_env_refuses_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(OptionError, match="http/protobuf was expected"):
        otlp.check("env")


def test_export_command_sends_spans_of_a_finished_run(run: RunFolder, receiver: Receiver) -> None:
    assert output_of("export", run.path, "--otlp", receiver.url) == f"OTLP: 6 spans sent to {receiver.url}\n"
    receiver.status = 400
    assert "then the export failed" in output_of("export", run.path, "--otlp", receiver.url, code=2)
