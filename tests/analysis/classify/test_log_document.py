"""Documents of log stores give the lines of the log that they hold."""

import csv
import io
import json
from collections.abc import Callable

import pytest

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.classify.diagnosis import Diagnosis, LogFailure
from loadchaos.analysis.classify.log_document import log_lines
from loadchaos.core.whole_lines import WholeLine

LINES = [
    "(APIServer pid=1) INFO:     ready",
    'ERROR 09-02 14:20:11 [core.py:1190] "a" \\ b',
    '  File "x.py", line 1, in f',
]
TIMES = [f"2026-09-02T14:20:0{n}.5Z" for n in range(3)]
NS = [1788358800500000000 + n * 10**9 for n in range(3)]


def gcp() -> str:
    return json.dumps(
        [{"textPayload": t, "timestamp": at, "severity": "ERROR"} for t, at in zip(LINES, TIMES, strict=True)], indent=1
    )


def newest_first() -> str:
    return json.dumps(json.loads(gcp())[::-1])


def cloud_watch() -> str:
    return json.dumps({"events": [{"timestamp": ns // 10**6, "message": t} for t, ns in zip(LINES, NS, strict=True)]})


def insights() -> str:
    rows = [
        [{"field": "@timestamp", "value": at.replace("T", " ")[:-1]}, {"field": "@message", "value": t}]
        for t, at in zip(LINES, TIMES, strict=True)
    ]
    return json.dumps({"results": rows})


def loki() -> str:
    values = [[str(ns), t] for t, ns in zip(LINES, NS, strict=True)]
    return json.dumps(
        {"status": "success", "data": {"resultType": "streams", "result": [{"stream": {"pod": "a"}, "values": values}]}}
    )


def elastic() -> str:
    hits = [{"_source": {"@timestamp": at, "message": t}} for t, at in zip(LINES, TIMES, strict=True)]
    return json.dumps({"took": 4, "hits": {"total": {"value": 3}, "hits": hits}})


def otlp() -> str:
    records = [{"timeUnixNano": str(ns), "body": {"stringValue": t}} for t, ns in zip(LINES, NS, strict=True)]
    return "\n".join(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [r]}]}]}) for r in records)


def grafana() -> str:
    return json.dumps([{"line": t, "timestamp": str(ns), "fields": {}} for t, ns in zip(LINES, NS, strict=True)])


def table() -> str:
    out = io.StringIO()
    csv.writer(out).writerows([("@timestamp", "@message"), *reversed(list(zip(TIMES, LINES, strict=True)))])
    return out.getvalue()


@pytest.mark.parametrize(
    "export", [gcp, newest_first, cloud_watch, insights, loki, elastic, otlp, grafana, table], ids=lambda e: e.__name__
)
def test_document_gives_the_lines_of_its_log(export: Callable[[], str]) -> None:
    found = list(log_lines(export().splitlines(), longest_line=1 << 20))
    assert [line.split("+00:00 ", 1)[-1] for line in found] == LINES


def test_document_in_one_line_that_the_reader_cut_is_whole() -> None:
    text = loki()
    pieces = [text[at : at + 50] for at in range(0, len(text), 50)]
    assert [line.split("+00:00 ", 1)[-1] for line in log_lines(pieces, longest_line=50)] == LINES


def test_log_with_its_newest_line_first_is_turned_around() -> None:
    lines = [f"2026-09-02T14:20:{59 - n:02d}Z line {n}" for n in range(30)]
    assert list(log_lines(lines, longest_line=1 << 20)) == lines[::-1]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(json.dumps({"timestamp": at, "message": t}) for t, at in zip(LINES, TIMES, strict=True)),
        '{"error":{"message":"x","code":500}}',
        "a, message, that is no table\nof anything",
        "\n".join(f"2026-09-02T14:20:{n:02d}Z line" for n in range(30)),
        '{"log": broken',
        "",
    ],
    ids=["a record in each line", "the body of an error", "prose", "oldest first", "no JSON", "empty"],
)
def test_other_text_passes_unchanged(text: str) -> None:
    assert list(log_lines(text.splitlines(), longest_line=1 << 20)) == text.splitlines()


def test_table_with_a_field_that_is_too_long_passes_unchanged() -> None:
    lines = ["@timestamp,@message", '2026-09-02T14:20:00Z,"' + "x" * 200_000, "more"]
    assert list(log_lines(lines, longest_line=1 << 20)) == lines


def test_clock_of_llama_cpp_is_the_time_since_its_start() -> None:
    diagnosis = Diagnosis()
    for n, line in enumerate(
        (
            "0.00.104.287 I srv  llama_server: listening on http://127.0.0.1:8080",
            "0.12.300.000 E srv    send_error: task id = 1, error: x",
        ),
        1,
    ):
        diagnosis.feed(WholeLine(line, n))
    [failure] = diagnosis.finish()
    assert LogFailure.of(failure, diagnosis.landmarks).at == "12.3 s after the start"


def test_cause_and_echo_are_near_by_the_clock_that_both_have() -> None:
    oom = "2026-09-02T23:00:00Z torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    dead = "(EngineCore_DP0 pid=88) ERROR 09-02 15:00:01 [core.py:1190] EngineCore encountered a fatal error."
    [failure] = classify_text(f"{oom}\n2026-09-02T23:00:01Z {dead}\n")
    assert (failure.id, failure.severity) == ("cuda_oom_runtime", "engine_death")
