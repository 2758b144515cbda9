"""OpenTelemetry spans of generative AI, in OTLP JSON.

The file exporter of the collector writes an object with `resourceSpans` a line. A span with `gen_ai.usage.input_tokens` and
`gen_ai.usage.output_tokens` (before 1.27 `prompt_tokens`, `completion_tokens`) is a request. Spans of agents, tools and
embeddings are none: the usage of an agent is the sum of its children.
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadchaos.core.units import NS_PER_MS
from loadchaos.profile.trace_formats.base import Arrival, TraceFormat, answered, whole

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")

_NO_REQUEST = {
    "create_agent", "embeddings", "execute_tool", "invoke_agent", "invoke_workflow", "retrieval",
}  # fmt: skip
"""Values of `gen_ai.operation.name` of spans that send no chat or completion."""


def _arrivals(row: Mapping[str, object]) -> Iterator[Arrival]:
    for resource in _list(row, "resourceSpans"):
        for scope in _list(resource, "scopeSpans"):
            for span in _list(scope, "spans"):
                yield from _request(span)


def _request(span: Mapping[str, object]) -> Iterator[Arrival]:
    given = ((str(a.get("key")), a.get("value")) for a in _list(span, "attributes"))
    found = {key: value for key, value in given if isinstance(value, Mapping)}
    if found.get("gen_ai.operation.name", {}).get("stringValue") in _NO_REQUEST:
        return
    sent, came = (next((n for n in names if n in found), None) for names in (_INPUT, _OUTPUT))
    if sent is None or came is None:
        return  # a span without usage
    start = str(span.get("startTimeUnixNano"))
    if not start.isdigit():
        raise ValueError(f"startTimeUnixNano: nanoseconds were expected (got {start!r})")
    # Some exporters write each number as a doubleValue.
    tokens = (whole(next(iter(found[name].values()), None), name) for name in (sent, came))
    yield from answered(int(start) / NS_PER_MS, *tokens)


def _list(holder: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    found = holder.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise ValueError(f"{key}: a list of objects was expected")
    return found


FORMAT = TraceFormat("OpenTelemetry GenAI spans (OTLP JSON)", frozenset({"resourceSpans"}), _arrivals)
