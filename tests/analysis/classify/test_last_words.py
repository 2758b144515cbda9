from pathlib import Path

import pytest

from loadchaos.analysis.classify.access_log import refusal
from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.classify.diagnosis import Diagnosis, LogFailure
from loadchaos.analysis.classify.last_words import Candidate, LastWords, rank_of
from loadchaos.analysis.classify.normalise import without_numbers
from loadchaos.analysis.classify.prefixes import LogLine
from loadchaos.analysis.judge import Judge
from loadchaos.core.model import Terms
from loadchaos.core.whole_lines import WholeLine
from loadchaos.report.terminal.diagnosis import render
from tests.analysis.conftest import History
from tests.rows import folded

BENIGN = Path(__file__).parents[2] / "crashes/benign"
PTX = "CUDA error: the provided PTX was compiled with an unsupported zoolchain."
UCX = "FATAL: XUCX library was compiled with zavx but CPU does not support it."
DIED = "(APIServer pid=1) ERROR 01-05 12:12:01 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly."
SERVES = "(APIServer pid=1) INFO:     Application startup complete.\n"
TRACE = """(APIServer pid=1) ERROR 01-05 12:00:{n:02d} [serving.py:88] Error in the flux handler
(APIServer pid=1) ERROR 01-05 12:00:{n:02d} [serving.py:88] Traceback (most recent call last):
(APIServer pid=1) ERROR 01-05 12:00:{n:02d} [serving.py:88]   File "/x/flux/flux.py", line 7, in handle
(APIServer pid=1) ERROR 01-05 12:00:{n:02d} [serving.py:88]     raise FluxError
(APIServer pid=1) ERROR 01-05 12:00:{n:02d} [serving.py:88] FluxError: slot {n} is odd
(APIServer pid=1) INFO:     10.0.0.7:41214 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
"""


def test_echo_of_a_death_shows_the_native_message_before_it() -> None:
    text = f"{SERVES}(EngineCore_DP0 pid=15) {PTX}\n(APIServer pid=1) ERROR 01-05 12:12:00 [x.py:1] odd\n{DIED}\n"
    [failure] = classify_text(text)
    assert (failure.id, failure.role, failure.severity) == ("engine_core_proc_died", "echo", "engine_death")
    assert [c.text for c in failure.candidates] == [PTX, "odd"]
    assert failure.candidates[0].line == 2


def test_log_that_ends_in_a_fatal_message_is_a_failed_start() -> None:
    [failure] = classify_text(f"[1736078321.1] [node:42:0] UCX  INFO version 1.18\n{UCX}\n")
    assert (failure.id, failure.severity, failure.evidence.text) == ("unexplained_end", "startup", UCX)


def test_log_that_ends_in_an_error_while_starting_is_a_failed_start() -> None:
    start = "(APIServer pid=1) INFO 01-05 12:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"
    text = f"{start}INFO: loading\n(EngineCore pid=9) ERROR 01-05 12:00:09 [core.py:1] the flux is odd\n"
    [failure] = classify_text(text)
    assert (failure.id, failure.severity) == ("unexplained_end", "startup")
    assert [f.id for f in classify_text(text + SERVES + "INFO: more\n" * 9)] == ["unexplained_error"]


def test_unknown_exception_that_killed_nobody_is_counted() -> None:
    found = classify_text(SERVES + "".join(TRACE.format(n=n) for n in range(12)) + "INFO: goes on\n" * 20)
    [failure] = found
    assert (failure.id, failure.severity, failure.repeats) == ("unexplained_exception", "request", 11)
    assert failure.title == "FluxError: slot N is odd in flux.py handle"


def test_error_without_a_traceback_is_counted() -> None:
    line = "2026-11-20 15:53:37,917 - lmdeploy - ERROR - x.py:797 - session {n} met an odd flux\n"
    [failure] = classify_text(SERVES + "".join(line.format(n=n) for n in range(5)) + "INFO: goes on\n" * 20)
    assert (failure.id, failure.repeats) == ("unexplained_error", 4)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Error: the flux has no such pole", "Error: the flux has no such pole"),
        ("0.05.000.000 E flux: pole gone on Gpu0", "flux: pole gone on Gpu0"),
        (
            '{"level":"error","ts":"2026-01-05T12:00:00Z","msg":"flux read failed","error":"pole 7 is odd"}',
            "flux read failed: pole 7 is odd",
        ),
    ],
)
def test_last_error_of_a_command_of_llamacpp_and_of_a_json_record_is_shown(line: str, shown: str) -> None:
    [failure] = classify_text(f"0.00.013.676 I srv  llama_server: initializing ...\nflux: up\n{line}\n")
    assert (failure.id, failure.severity, failure.evidence.text) == ("unexplained_end", "startup", shown)


def test_exception_that_names_nothing_shows_its_line_of_code() -> None:
    trace = """Traceback (most recent call last):
  File "/x/flux/flux.py", line 7, in handle
    pole = self.poles[0]
TypeError: 'NoneType' object is not subscriptable
"""
    [failure] = classify_text(
        f'{SERVES}INFO:     10.0.0.7:41214 - "POST /v1/x HTTP/1.1" 200 OK\n{trace}' + "INFO: on\n" * 20
    )
    assert failure.evidence.text is not None
    assert failure.evidence.text.endswith("<- flux.py handle: pole = self.poles[0]")


def test_unexplained_errors_are_at_most_three_findings() -> None:
    words = ("red", "green", "blue", "black", "white")
    lines = [f"(APIServer pid=1) ERROR 01-05 12:00:00 [x.py:1] the {word} flux\n" for word in words]
    assert len(classify_text(SERVES + "".join(lines) + "INFO: goes on\n" * 20)) == 3


def test_errors_around_a_death_are_no_findings_of_their_own() -> None:
    text = SERVES + TRACE.format(n=3) + f"(EngineCore_DP0 pid=15) {PTX}\n{DIED}\n"
    [failure] = classify_text(text)
    assert failure.id == "engine_core_proc_died"
    assert failure.candidates[0].text == PTX


def test_request_error_long_before_a_death_is_no_candidate() -> None:
    text = SERVES + TRACE.format(n=3) + '(APIServer pid=1) INFO: 10.0.0.7:1 - "POST /v1/x" 200 OK\n' * 60 + DIED + "\n"
    [failure] = [f for f in classify_text(text) if f.severity == "engine_death"]
    assert failure.candidates == ()


@pytest.mark.parametrize("until", ["Load weight begin", "/v1/embeddings"])
def test_start_and_refusals_of_a_healthy_sglang_are_no_candidates(until: str) -> None:
    healthy = (BENIGN / "sglang-cpu-start-and-refusals-0.5.23.log").read_text().partition(until)[0]
    died = "\n[2026-11-23 04:58:06] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
    [failure] = classify_text(healthy + died)
    assert (failure.id, failure.candidates) == ("sglang_sigquit", ())


def test_diagnosis_prints_the_candidates() -> None:
    diagnosis = Diagnosis("x")
    for n, line in enumerate(f"{SERVES}(EngineCore_DP0 pid=15) {PTX}\n{DIED}\n".splitlines(), 1):
        diagnosis.feed(WholeLine(line, n))
    [found] = diagnosis.finish()
    shown = render("x", [LogFailure.of(found, diagnosis.landmarks)], lines=3, version=None, marks={}, width=200)
    assert f"maybe    line 2: {PTX}" in shown
    assert "its cause is not in this log" not in shown


@pytest.mark.parametrize("line", [UCX, f"(EngineCore pid=9) {PTX}"])
def test_verdict_shows_last_words_of_a_death_that_no_rule_names(history: History, line: str) -> None:
    ids = history.begin().work(5).send(5)
    history.serve(0.2).log(line).die(ids).idle(3).end()
    [failure] = [f for f in history.verdict()["failures"] if f["severity"] == "engine_death"]
    assert failure["candidates"][0]["text"] in line
    judge = folded(Judge(Terms("test")), history.rows)
    judge.verdict()
    [incident] = [i for i in judge.incidents if i.kind == "death"]
    assert str(incident.record().candidates[0].text) in line


def test_verdict_notes_an_unknown_exception_with_its_count(history: History) -> None:
    history.begin().work(5).log("".join(TRACE.format(n=n) for n in range(4)).rstrip())
    verdict = history.work(20).end().verdict()
    assert verdict["verdict"] == "pass"
    assert verdict["failures"] == []
    [note] = verdict["notes"]
    assert note.startswith("unexplained exception in the server's log, 4 x: FluxError: slot N is odd in flux.py handle")


def test_candidates_of_a_time_are_of_one_server_the_kernel_and_the_minute_before() -> None:
    second, words = 1_000_000_000, LastWords()
    for n, (source, at_s) in enumerate(
        [("a.log", 100), ("b.log", 100), ("dmesg", 100), ("a.log", 30), ("a.log", 120)], 1
    ):
        words.add(Candidate(f"watch/logs/{source}", n, f"CUDA error: {source} {'x' * n}", "", 5, at_s * second))

    def lines(at_s: int, replica: str | None) -> list[int]:
        return sorted(c.line or 0 for c in words.at_time(at_s * second, replica, kernel="watch/logs/dmesg"))

    assert lines(100, "a") == [1, 3]
    assert lines(100, None) == [1, 2, 3]
    assert lines(110, "a") == [1, 3, 5]
    assert lines(900, None) == []


@pytest.mark.parametrize(
    ("level", "candidate"), [("INFO", False), ("DEBUG", False), ("WARNING", False), ("ERROR", True), ("", True)]
)
def test_candidates_leave_out_quiet_lines(level: str, candidate: bool) -> None:
    for text in (PTX, UCX, "FluxError: slot 3 is odd", "the flux cannot be opened"):
        assert (rank_of(LogLine(text, level=level))[0] > 0) is candidate


def test_exception_of_any_name_that_python_has_ranks_alike() -> None:
    names = ("flux.FluxError", "Exception", "ExceptionGroup", "KeyboardInterrupt", "queue.FluxTimeout")
    assert {rank_of(LogLine(f"{name}: odd"))[0] for name in names} == {rank_of(LogLine("FluxError: odd"))[0]}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["the shard answers slowly", "the flux is unreachable, 3 of 4 shards left"], [2]),
        (["the flux is unreachable"], [1]),
        (["error budget left: 0.99", "no errors found in 12 shards"], []),
        (["the flux is unreachable", 'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'], []),
        (["INFO 01-05 12:00:00 [x.py:1] the flux is unreachable"], []),
        (["the flux is unreachable", *["more"] * 12], []),
    ],
)
def test_excerpt_in_which_no_rule_finds_anything_shows_its_last_line_of_an_error(
    lines: list[str], found: list[int]
) -> None:
    diagnosis = Diagnosis("x")
    for n, line in enumerate(lines, 1):
        diagnosis.feed(WholeLine(line, n))
    failures = diagnosis.finish()
    assert [f.evidence.line for f in failures] == found
    assert {(f.id, f.severity) for f in failures} <= {("unexplained_error", "request")}


@pytest.mark.parametrize(("body", "severity"), [("{}", "request"), ("data: {}", "request"), ("", "engine_death")])
def test_words_of_a_death_in_an_answer_kill_nobody(body: str, severity: str) -> None:
    words = "CUDA out of memory. Tried to allocate 2 GiB"
    text = body.replace("{}", f'{{"error": {{"message": "{words}"}}}}') or words
    assert [f.severity for f in classify_text(text)] == [severity]


def test_requests_that_a_gateway_answers_with_5xx_have_counts_and_times() -> None:
    row = (
        '{{"DownstreamStatus":{},"RequestPath":"/v1/completions","ServiceURL":"http://10.0.0.4:8000",'
        '"time":"2026-06-14T11:20:{:02d}Z"}}'
    )
    log = "\n".join(row.format(502 if n % 2 else 200, n) for n in range(10))
    [failure] = classify_text(log)
    assert failure.title == "Requests were answered with 502 for /v1/completions by http://10.0.0.4:8000"
    assert failure.repeats == 4
    assert failure.why == "From 06-14 11:20:01 to 06-14 11:20:09"
    assert failure.remedy.startswith("502: ")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ('{"status":502,"uri":"/v1/models?x=1"}', "502 for /v1/models"),
        ('{"response_code": "504", "path": "/", "upstream_host": "10.0.0.4:8000"}', "504 for / by 10.0.0.4:8000"),
        ('{"status":503,"uri":"/api/healthz"}', ""),
        ('{"status":200,"uri":"/v1/models","size":500}', ""),
        ('{"status":502}', ""),
        ("http_request{method=POST uri=/v1/completions?x=1}: finished status=504", "504 for /v1/completions"),
        ("level=info msg=answered path=/healthz status=502", ""),
        ("request: POST /v1/completions 127.0.0.1 500", "500 for /v1/completions"),
        ('INFO: 10.0.0.9 - "POST /v1/completions HTTP/1.1" 503 Service Unavailable', ""),
    ],
)
def test_refusal_reads_access_logs(line: str, answer: str) -> None:
    assert refusal(line) == answer


def test_lines_that_differ_in_numbers_alone_are_of_one_kind() -> None:
    assert without_numbers("took 12 of 2026-06-14T11:20:31") == without_numbers("took 7 of 2026-06-15T12:21:32")
    assert without_numbers("layer_1 of int8") != without_numbers("layer_2 of int8")
    log = "\n".join(f"10:11AM ERR relay {n} broke" for n in range(2_000))
    assert [(f.id, f.repeats) for f in classify_text(log)] == [("unexplained_error", 1_999)]


@pytest.mark.parametrize(("lines_before", "severity"), [(0, "startup"), (300, "request")])
def test_error_that_keeps_a_program_from_its_start_is_one_in_the_first_lines(lines_before: int, severity: str) -> None:
    log = ["10:11AM INF works"] * lines_before + ["10:11AM ERR failed to load the plugins", "10:11AM INF works"]
    assert [f.severity for f in classify_text("\n".join(log))] == [severity]


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        ("the event loop stopped", "engine_death"),
        ("worker 3 died", "engine_death"),
        ("the server terminated the connection", "request"),
        ("hang detected on rank 0", "hang"),
        ("something odd", "request"),
    ],
)
def test_words_of_an_unknown_error_give_its_severity_unless_an_answer_follows(error: str, severity: str) -> None:
    answer = '10.0.0.9 - - [14/Jun/2026:11:19:01 +0000] "POST /v1/completions HTTP/1.1" 200 12'
    log = [answer, f"10:11AM ERR {error}", "10:11AM INF still here"]
    assert [f.severity for f in classify_text("\n".join(log))] == [severity]
    assert [f.severity for f in classify_text("\n".join([*log, answer]))] == ["request"]
    many = [f"10:11AM ERR the event loop of part{'x' * n} stopped" for n in range(12)]
    assert {f.severity for f in classify_text("\n".join([*log, *many, *many[-1:] * 3, answer]))} == {"request"}


@pytest.mark.parametrize(
    ("text", "name", "severity"),
    [
        ("the heartbeat of the fleet failed", "error_in_background", "degraded"),
        ("the heartbeat of the fleet failed for request 7", "unexplained_error", "request"),
        ("the watcher of the fleet failed: response ended", "error_in_background", "degraded"),
        ("the flux failed", "unexplained_error", "request"),
    ],
)
def test_error_of_the_background_is_no_failed_request(text: str, name: str, severity: str) -> None:
    [failure] = classify_text(f"{SERVES}ERROR 01-05 12:00:00 [x.py:1] {text}\n" + "INFO: goes on\n" * 20)
    assert (failure.id, failure.severity) == (name, severity)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (
            "http.method=POST http.path=/v1/chat/completions http.status=503 duration=2ms",
            "503 for /v1/chat/completions",
        ),
        ("latency=2.1s method=POST status=500 url=/v1/completions", "500 for /v1/completions"),
        ("--> POST /v1/chat/completions 502 741ms", "502 for /v1/chat/completions"),
        ("POST /api/chat 504 in 61041ms", "504 for /api/chat"),
        ("method=GET path=/readyz status=503", ""),
    ],
)
def test_refusals_in_pairs_and_of_node_programs_are_read(line: str, answer: str) -> None:
    assert refusal(line) == answer
