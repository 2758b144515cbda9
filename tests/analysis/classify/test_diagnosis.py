from collections.abc import Iterable
from pathlib import Path

import pytest

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.classify.diagnosis import Diagnosis
from loadchaos.analysis.failure import Failure
from loadchaos.core.whole_lines import WholeLine
from tests.crash_logs import CRASHES, log_text

LOGS = sorted(CRASHES.rglob("*.log"))
DEATH = log_text(CRASHES / "vllm" / "encoder-cache-miss-in-the-drafter.log").splitlines()


def diagnose(lines: Iterable[str]) -> tuple[Diagnosis, list[Failure]]:
    diagnosis = Diagnosis()
    for n, line in enumerate(lines, 1):
        diagnosis.feed(WholeLine(line, n))
    return diagnosis, diagnosis.finish()


@pytest.mark.parametrize("path", LOGS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_diagnosis_by_line_equals_the_whole_log(path: Path) -> None:
    text = log_text(path)
    if len(text.splitlines()) < 2:
        return  # one line is read as an HTTP body
    whole = {(f.id, f.title, f.severity, f.evidence.line) for f in classify_text(text)}
    _, found = diagnose(text.splitlines())
    assert {(f.id, f.title, f.severity, f.evidence.line) for f in found} == whole


SAID = "main: could not bind the socket of the frobnicator"


@pytest.mark.parametrize(
    ("after", "name"), [([], ("unexplained_end", "startup")), (["bye"] * 3, ("unexplained_error", "request"))]
)
def test_diagnosis_shows_the_last_line_that_reads_as_an_error_where_nothing_else_was_found(
    after: list[str], name: tuple[str, str]
) -> None:
    _, found = diagnose(["main: load", SAID, *after])
    assert [(f.id, f.severity, f.evidence.text) for f in found] == [(*name, SAID)]


@pytest.mark.parametrize(
    "after", [["step"] * 20, ["INFO:     Application startup complete.", "ERROR: of another kind"]]
)
def test_diagnosis_does_not_show_such_a_line_of_a_log_that_goes_on_or_has_more(after: list[str]) -> None:
    _, found = diagnose(["main: load", SAID, *after])
    assert SAID not in [f.evidence.text for f in found]


_INSIDE = ("client-left-before", "stream-refused", "tool-call-cut", "quote-a-failed-import")  # what follows excuses it


@pytest.mark.parametrize("path", sorted((CRASHES / "benign").glob("*.log")), ids=lambda p: p.stem)
def test_healthy_log_that_is_cut_anywhere_is_silent(path: Path) -> None:
    lines = log_text(path).splitlines()
    if not any(name in path.stem for name in _INSIDE):
        assert [n for n in range(2, min(len(lines), 400), 41) if diagnose(lines[:n])[1]] == []


def test_diagnosis_reports_every_death_of_a_crash_loop() -> None:
    start = "(APIServer pid=1) INFO 11-20 15:53:40 [api_server.py:1] vLLM API server version 0.18.0"
    _, found = diagnose(line for _ in range(5) for line in [start, *DEATH])
    assert [f.id for f in found] == ["encoder_cache_miss"] * 5
    lines = [f.evidence.line or 0 for f in found]
    assert len(set(lines)) == 5
    assert lines == sorted(lines)


def test_diagnosis_memory_does_not_grow_with_the_log() -> None:
    error = (
        "(EngineCore pid=8) ERROR 11-20 15:53:40 [core.py:1] AssertionError: Expected a cached item for mm_hash='ab12'"
    )
    diagnosis = Diagnosis()
    held = []
    for n in range(60_000):
        step = f"INFO 11-20 {n // 3600 % 24:02d}:{n // 60 % 60:02d}:00 [x.py:1] step {n}"
        diagnosis.feed(WholeLine(error if n % 7 == 0 else step, n + 1))
        held.append(len(diagnosis._held) + len(diagnosis._context))
    assert max(held) < 6_000
    [failure] = diagnosis.finish()
    assert failure.repeats > 8_000


def test_diagnosis_finds_version_flags_and_dying_batch() -> None:
    lines = [
        "(APIServer pid=1) INFO 11-20 15:53:40 [api_server.py:1] vLLM API server version 0.18.0",
        "(APIServer pid=1) INFO 11-20 15:53:40 [utils.py:1] non-default args: {'model': 'm'}",
        *DEATH,
        "(EngineCore pid=2) ERROR 11-20 15:53:41 [dump_input.py:72] Dumping input data for V1 LLM engine (v0.18.0)",
    ]
    diagnosis, _ = diagnose(lines)
    assert diagnosis.landmarks.version == ("vllm", "0.18.0", 1)
    assert diagnosis.landmarks.lines == {"flags": [2], "batch": [5, len(lines)]}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "INFO 05-06 10:00:00 llm_engine.py:237] Initializing a V0 LLM engine (v0.8.5.post1) with config",
            ("vllm", "0.8.5.post1"),
        ),
        ("vLLM API server version 0.32.0+cpu", ("vllm", "0.32.0+cpu")),
        ("lmdeploy version: 0.18.0", None),
        ("lmdeploy 0.18.0 is here", ("lmdeploy", "0.18.0")),
        ("GET /v1 HTTP/1.1", None),
    ],
)
def test_diagnosis_finds_versions_in_start_up_lines(line: str, version: tuple[str, str] | None) -> None:
    diagnosis, _ = diagnose([line, ""])
    assert (diagnosis.landmarks.version or (None, None))[:2] == (version or (None, None))


def test_diagnosis_names_the_same_death_of_a_second_life() -> None:
    text = log_text(CRASHES / "cuda" / "index-out-of-bounds-near-max-length.log")
    start = "(APIServer pid=1) INFO 11-20 15:53:40 [api_server.py:1] vLLM API server version 0.18.0"
    _, found = diagnose(line for _ in range(6) for line in [start, *text.splitlines()])
    assert [f.id for f in found if f.severity == "engine_death"] == ["index_oob_indexkernel"] * 6


def test_diagnosis_counts_late_shutdown_lines_as_no_second_death() -> None:
    log = log_text(CRASHES / "vllm/top-k-under-speculation-0.32.log").splitlines()
    last = [line.partition("] ")[2] for line in log if line.startswith("(EngineCore") and "fatal error" not in line]
    _, found = diagnose([*log, *("INFO:     127.0.0.1:1 - stream closed" for _ in range(24_000)), *last])
    assert [f.id for f in found] == ["spec_sampler_top_k"]


ROUTED = "2026-06-14 11:19:01  INFO flux_router: src/router.rs:88: request routed to http://10.0.0.4:8000"
WARNED = "2026-06-14 11:20:{n:02d}  WARN flux_router: src/router.rs:91: {text}"


@pytest.mark.parametrize(
    ("text", "name", "severity"),
    [
        ("cannot free request {n}: it failed before", "unexplained_warning", "request"),
        ("the flux could not be kept", "unexplained_warning", "degraded"),
        ("the lease could not be kept", "error_in_background", "degraded"),
    ],
)
def test_diagnosis_counts_warnings_of_failures_where_nothing_else_was_found(
    text: str, name: str, severity: str
) -> None:
    warned = [WARNED.format(n=n, text=text.format(n=n)) for n in range(20, 32)]
    _, found = diagnose([ROUTED, *warned, ROUTED])
    assert [(f.id, f.severity, f.repeats, f.evidence.line) for f in found] == [(name, severity, 11, 2)]
    _, with_error = diagnose(
        [ROUTED, *warned, "2026-06-14 11:20:31 ERROR flux_router: src/router.rs:9: odd flux", ROUTED]
    )
    assert [f.id for f in with_error] == ["unexplained_error"]


@pytest.mark.parametrize(
    "line",
    [
        WARNED.format(n=31, text="attempt 1 failed, retrying"),
        WARNED.format(n=31, text="the flux is odd"),
        "WARNING 06-14 11:20:31 [flux.py:7] Failed to import the flux",  # Python warns of harmless things
    ],
)
def test_diagnosis_shows_no_warning_that_mends_itself_or_says_no_failure(line: str) -> None:
    _, found = diagnose([ROUTED, line, ROUTED])
    assert found == []


def test_diagnosis_shows_no_warning_of_a_start() -> None:
    start = "2026-06-14 11:18:01  INFO flux_router: src/main.rs:8: Starting"
    _, found = diagnose([start, WARNED.format(n=1, text="failed to read the flux file"), *["step"] * 9])
    assert found == []


def test_error_of_a_program_that_was_asked_is_no_failed_start() -> None:
    start, error = "2026-06-14 11:18:01  INFO flux: src/main.rs:8: Starting", "ERROR: no flux from the peer"
    for lines, severity in (([start, error], "startup"), ([start, ROUTED, error], "request")):
        _, found = diagnose([*lines, *["step"] * 20])
        assert [f.severity for f in found] == [severity]
