"""Any other server with the OpenAI API."""

from __future__ import annotations

from loadchaos.server.dialects.base import Dialect, MetricName, patterns

PROCESS_METRICS = (
    MetricName("process_start_time_s", ("process_start_time_seconds",)),
    MetricName("process_rss_bytes", ("process_resident_memory_bytes",)),
)

OPENAI = Dialect(
    name="openai",
    title="OpenAI-compatible server",
    health_knows_death=False,
    metrics_path=None,
    # The kind of server is not known, so a JSON error object in a common shape counts as a refusal.
    refusal_statuses=frozenset({400, 413, 422}),
    log_shutdown=patterns(r"INFO:\s+Shutting down\b"),  # uvicorn, which most of these servers use
    validation=patterns(
        r'"error"\s*:\s*\{',
        r'"object"\s*:\s*"error"',
        r"invalid_request_error|BadRequest|not_found_error|context_length_exceeded",
        r"maximum context length|longer than the (?:model's )?maximum|does not exist",
    ),
    shed=patterns(
        r"[Rr]ate.?limit",
        r"(?i)too many requests",
        r"(?i)overloaded|server is busy|try again later|queue is full",
    ),
    metrics=PROCESS_METRICS,
)
