import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadchaos.analysis.classify.classifier import Classifier, classify_text, group, load
from loadchaos.analysis.classify.log_document import log_lines
from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.classify.prefixes import strip_prefixes
from loadchaos.analysis.classify.python_stack import Frame, guilty_frame
from loadchaos.analysis.failure import Failure
from tests.crash_logs import CRASHES, log_text


def body(name: str) -> str:
    return log_text(CRASHES / name)


DRAFTER = body("vllm/encoder-cache-miss-in-the-drafter.log")
LMDEPLOY = body("lmdeploy/input-longer-than-kv-cache-0.6.log")
PIPELINE = body("cuda/illegal-access-between-pipeline-stages.log")


def each(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(line) for line in text.splitlines())


FORMS: dict[str, Callable[[str], str]] = {
    "as captured": lambda text: text,
    "docker compose": each(lambda line: f"vllm-1  | {line}"),
    "kubectl with a prefix": each(lambda line: f"[pod/vllm-0/server] {line}"),
    "kubelet": each(lambda line: f"2026-04-02T11:15:40.123456789Z stderr F {line}"),
    "docker with time stamps": each(lambda line: f"2026-04-02T11:15:40.123456789Z {line}"),
    "journald": each(lambda line: f"Apr 02 11:15:40 gpu7 vllm[4711]: {line}"),
    "docker's JSON": each(
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-04-02T11:15:40Z"})
    ),
    "docker's JSON with colours": each(
        lambda line: json.dumps({"log": f"\x1b[0;36m{line}\x1b[0m\n", "stream": "stderr"})
    ),
    "colours": each(lambda line: f"\x1b[0;36m{line}\x1b[0m"),
    "Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "compose over colours": each(lambda line: f"\x1b[36mvllm-1  |\x1b[0m {line}"),
    "docker service logs": each(lambda line: f"llm_vllm.1.x3f9@gpu7    | {line}"),
    "kubectl with prefix and time stamps": each(
        lambda line: f"[pod/vllm-0/server] 2026-04-02T11:15:40.123456789Z {line}"
    ),
    "stern": each(lambda line: f"vllm-7c9d5b6f4-x2x9z server {line}"),
    "CloudWatch": each(lambda line: f"2026-04-02T11:15:40.123Z\t{line}"),
    "Google Cloud": each(lambda line: json.dumps({"textPayload": line, "severity": "ERROR"})),
    "OpenTelemetry": each(lambda line: json.dumps({"body": {"stringValue": line}, "severityText": "ERROR"})),
    "Loki": each(lambda line: json.dumps({"stream": {"pod": "vllm-0"}, "line": line})),
    "journald's JSON": each(lambda line: json.dumps({"MESSAGE": line, "_PID": "4711", "SYSLOG_IDENTIFIER": "vllm"})),
    "journald, ISO": each(lambda line: f"2026-04-02T11:15:40+0200 gpu7 vllm[4711]: {line}"),
    "journald, precise": each(lambda line: f"Apr 02 11:15:40.123456 gpu7 vllm[4711]: {line}"),
    "srun --label": each(lambda line: f"0: {line}"),
    "quoted": each(lambda line: f"> {line}"),
}


def gist(failures: list[Failure]) -> list[tuple[str, str, str, tuple[str, ...]]]:
    return [(f.id, f.severity, f.title, f.frames) for f in failures]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log", [DRAFTER, LMDEPLOY, PIPELINE], ids=["drafter", "lmdeploy", "pipeline"])
def test_classifier_is_independent_of_the_form_of_a_log(form: str, log: str) -> None:
    assert gist(classify_text(FORMS[form](log))) == gist(classify_text(log)) != []


def test_classifier_reads_a_traceback_inside_a_json_record() -> None:
    trace = "\n".join(line.split("] ", 1)[1] for line in DRAFTER.splitlines()[4:22] if "] " in line)
    records = [{"level": "ERROR", "message": "EngineCore encountered a fatal error.", "exc_info": trace}]
    failures = classify_text("\n".join([*map(json.dumps, records), '{"message": "done"}']))
    assert [(f.id, f.title) for f in failures] == [
        ("encoder_cache_miss", "Encoder cache miss in the drafter (propose_draft_token_ids)")
    ]


def test_classifier_separates_interleaved_processes() -> None:
    other = [
        line.replace("Worker_PP1 pid=412", "Worker_PP2 pid=413") for line in PIPELINE.splitlines() if "PP1" in line
    ]
    mixed = []
    for n, line in enumerate(PIPELINE.splitlines()):
        mixed += [line, *other[n - 1 : n]]
    failures = classify_text("\n".join(mixed))
    assert [f.id for f in failures] == ["cuda_illegal_memory_access"]
    assert failures[0].repeats == 3  # the other stage, what the engine core quotes of the first, and its last words
    assert failures[0].frames[-1] == "__init__.py:1040 synchronize"


def test_classifier_separates_several_deaths_in_one_file() -> None:
    start = "\nINFO:     Started server process [1]\n"
    failures = classify_text(DRAFTER + start + PIPELINE + start + DRAFTER)
    assert [f.id for f in failures] == ["encoder_cache_miss", "cuda_illegal_memory_access", "encoder_cache_miss"]


def test_classifier_separates_deaths_an_hour_apart() -> None:
    later = DRAFTER.replace("04-02 11:", "04-02 13:")
    assert [f.id for f in classify_text(DRAFTER + later)] == ["encoder_cache_miss", "encoder_cache_miss"]


def test_classifier_separates_two_logs_and_keeps_arrival_times() -> None:
    classifier, matches = Classifier(), []
    for n, (a, b) in enumerate(zip(DRAFTER.splitlines(), PIPELINE.splitlines(), strict=False), 1):
        matches += classifier.feed(a, line_no=n, at_ns=n * 1000, source="a")
        matches += classifier.feed(b, line_no=n, at_ns=n * 1000, source="b")
    failures = group(matches + classifier.close())
    assert [(f.id, f.evidence.source) for f in failures] == [
        ("cuda_illegal_memory_access", "b"),
        ("encoder_cache_miss", "a"),
    ]
    assert failures[0].at_ns == (failures[0].evidence.line or 0) * 1000


def test_classifier_finds_a_failure_in_its_own_evidence_line() -> None:
    for path in sorted(CRASHES.rglob("*.log")):
        for failure in classify_text(body(str(path.relative_to(CRASHES)))):
            signature = load().get(failure.id)
            if signature is None or signature.where != "line" or signature.symptom:
                continue
            if failure.role == "echo" or signature.role == "place":
                continue
            again = [s.id for s, _ in load().scan(failure.evidence.text or "")]
            assert failure.id in again, f"{path.name}: {failure.evidence.text}"


@pytest.mark.parametrize(
    "path", sorted(p for p in CRASHES.rglob("*.log") if p.parent.name != "benign"), ids=lambda p: p.stem
)
def test_classifier_ignores_writer_and_time_of_a_line(path: Path) -> None:
    log = log_text(path)
    chance = random.Random(path.name)
    pids = {pid: str(chance.randrange(2, 4_000_000)) for pid in re.findall(r"pid=(\d+)", log)}
    later = re.sub(r"pid=(\d+)", lambda m: f"pid={pids[m[1]]}", log)
    later = re.sub(
        r"(?<![\d-])(\d\d)-(\d\d) (?=\d\d:\d\d:\d\d)", lambda m: f"{m[1]}-{(int(m[2]) + 3) % 28 + 1:02d} ", later
    )
    assert [f[:3] for f in gist(classify_text(later))] == [f[:3] for f in gist(classify_text(log))]


def test_classifier_counts_an_unknown_exception_only_after_an_echo() -> None:
    trace = 'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\n    g()\nFooError: bar 17\n'
    assert classify_text("WARNING: could not warm up\n" + trace) == []
    (failure,) = classify_text("ERROR 11-20 15:53:40 [core.py:1100] EngineCore encountered a fatal error.\n" + trace)
    assert (failure.id, failure.title, failure.severity) == (
        "unknown_exception",
        "FooError: bar N in y.py f",
        "engine_death",
    )


def test_classifier_counts_repeats_of_one_line() -> None:
    classifier = Classifier()
    line = "ERROR 11-20 15:53:40 [backend_xgrammar.py:167] Failed to advance FSM for request a for tokens 1."
    matches = [m for n in range(20_000) for m in classifier.feed(line, line_no=n, at_ns=n * 1000)]
    (failure,) = group(matches + classifier.close())
    assert len(matches) < 20
    assert failure.repeats <= 20_000


def test_guilty_frame_is_the_innermost_not_skipped() -> None:
    frames = [Frame("/vllm/a.py", 1, "a", 1), Frame("/usr/lib/python3.11/threading.py", 2, "run", 2)]
    assert guilty_frame(frames, load().skip) is frames[0]
    assert guilty_frame(frames[1:], load().skip) is frames[1]
    assert guilty_frame([], load().skip) is None


@pytest.mark.parametrize(
    ("noisy", "normal"),
    [
        ("Encoder cache miss for 7e5607661b306afa8b567412e9b9d431.", "Encoder cache miss for HASH."),
        ("no request chatcmpl-94dc8c1c7237533e-8c79b414", "no request REQUEST"),
        ("object at 0x7f63c9fc61c8", "object at ADDR"),
        ("tried 4.69 GiB on GPU 3", "tried N GiB on GPU N"),
        ("cuda12 int8 fp8", "cuda12 int8 fp8"),
        ("open /opt/venv/lib/x.so failed", "open x.so failed"),
        ("shape [2, 3, 4]", "shape [N...]"),
        ("connect 10.0.0.1:8000", "connect HOST"),
    ],
)
def test_normalise_removes_what_varies(noisy: str, normal: str) -> None:
    assert normalise(noisy) == normal


def test_normalise_is_idempotent() -> None:
    pieces = ["12", "0x1f", "deadbeef00", "req-1", "http://", *" /aN-.:,[]+x\n%"]
    chance = random.Random(7)
    for _ in range(5_000):
        text = "".join(chance.choices(pieces, k=chance.randrange(1, 60)))
        once = normalise(text)
        assert normalise(once) == once, repr(text)


def test_classifier_never_raises() -> None:
    chance = random.Random(11)
    words = [
        *DRAFTER.split(" "),
        *LMDEPLOY.split(" "),
        "\x00",
        "\ud800",
        "{",
        "}",
        '{"log": 3}',
        '{"error":{"error":{}}}',
        "\x1b[",
        "|",
    ]
    ends = ["\n", "\n", "\r\n", "\r", " ", "\t", "  "]
    for _ in range(300):
        text = "".join(w + chance.choice(ends) for w in chance.choices(words, k=chance.randrange(1, 120)))
        classify_text(text)
    classify_text("{" * 100_000 + "}")
    classify_text("Traceback (most recent call last):\n" * 50 + '  File "a", line 1\n' * 5_000)


@pytest.mark.parametrize(
    ("raw", "writer", "level", "text"),
    [
        ("(EngineCore_DP0 pid=396) ERROR 02-05 16:55:27 [core.py:902] boom", "EngineCore_DP0 pid=396", "ERROR", "boom"),
        ("ERROR 11-13 06:25:07 engine.py:144] boom", "", "ERROR", "boom"),
        ("ERROR 04-11 00:37:31 [core.py:386]   File", "", "ERROR", "  File"),
        ("[2025-06-01 12:00:00 DP0 TP3] boom", "DP0 TP3", "", "boom"),
        ("2026-11-20 15:53:37,984 - lmdeploy - ERROR - async_engine.py:456 - boom", "", "ERROR", "boom"),
        (
            "(APIServer pid=1) (Worker pid=9) ERROR 11-23 14:50:21 [a.py:1] boom",
            "Worker pid=9",
            "ERROR",
            "boom",
        ),  # torn
        ("(EngineCore pid=1) (RayWorkerWrapper pid=9) boom", "EngineCore pid=1", "", "boom"),
        ("(VllmWorker rank=1 pid=396) boom", "VllmWorker rank=1 pid=396", "", "boom"),
        ("(RayWorkerWrapper pid=1, ip=10.0.0.1) boom", "RayWorkerWrapper pid=1, ip=10.0.0.1", "", "boom"),
        ("[rank0]: boom", "rank0", "", "boom"),
        ("INFO:     boom", "", "INFO", "boom"),
        ("[ 1234.567890] NVRM: Xid", "", "", "NVRM: Xid"),
    ],
)
def test_strip_prefixes_keeps_the_text_of_a_line(raw: str, writer: str, level: str, text: str) -> None:
    line = strip_prefixes(raw)
    assert (line.writer, line.level, line.text) == (writer, level, text)


def test_group_explains_a_later_burst_by_an_earlier_cause() -> None:
    classifier = Classifier()
    lines = DRAFTER.splitlines()
    bursts = [
        [m for n, line in part for m in classifier.feed(line, line_no=n, at_ns=n * 1_000_000)]
        for part in (list(enumerate(lines, 1))[:22], list(enumerate(lines, 1))[22:])
    ]
    assert [f.id for f in group(bursts[0])] == ["encoder_cache_miss"]
    assert [f.id for f in group(bursts[1])] == ["engine_dead_error"]
    assert group(bursts[1], context=bursts[0]) == []


def test_group_explains_a_fault_by_an_earlier_sleep() -> None:
    classifier = Classifier()
    sleep = classifier.feed("CuMemAllocator: sleep freed 34.06 GiB memory", line_no=1, at_ns=1)
    fault = classifier.feed(
        "RuntimeError: CUDA error: an illegal memory access was encountered", line_no=2, at_ns=20_000_000_000
    )
    assert group(sleep) == []
    assert [f.id for f in group(fault, context=sleep)] == ["sleep_inflight_fault"]


def test_classifier_reads_a_page_as_one_text() -> None:
    page = (
        "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>"
        "\r\n<hr><center>nginx/1.27.0</center>\r\n</body>\r\n</html>"
    )
    assert [(f.id, f.title) for f in classify_text(page)] == [
        ("gateway_nginx", "nginx answered 502: no valid answer from the server")
    ]
    alb = page.replace("<hr><center>nginx/1.27.0</center>\r\n", "")
    assert [f.id for f in classify_text(alb)] == ["gateway_aws_alb"]


def test_classifier_names_an_uncaught_exception_at_the_end() -> None:
    trace = 'Traceback (most recent call last):\n  File "/x/serve.py", line 3, in main\n    import vllm_foo\n'
    missing = trace + "ModuleNotFoundError: No module named 'vllm_foo'\n"
    assert [f.id for f in classify_text("INFO: starting\n" + missing)] == ["module_missing"]
    (failure,) = classify_text(trace + "ValueError: bad 17\n")
    assert (failure.id, failure.title) == ("unknown_exception", "ValueError: bad N in serve.py main")
    assert classify_text("INFO: starting\n" + missing + "INFO: a\nINFO: b\nINFO: c\nINFO: d\n") == []
    assert classify_text("WARNING: no plugin\n" + missing) == []
    assert classify_text(trace + "KeyboardInterrupt\n") == []


def test_failure_has_the_facts_of_its_log_line() -> None:
    (failure,) = classify_text(LMDEPLOY)
    assert (failure.role, failure.at_ns, failure.layer) == ("cause", 0, "engine")
    assert failure.facts["capacity_tokens"] == 1344
    assert "21 x 64 = 1344 tokens; this prompt had 3446, which needs 54 blocks" in failure.why
    assert failure.remedy.startswith("Set --cache-max-entry-count to at least 0.26 (0.1 now).")


def test_classifier_distinguishes_drafter_and_target_misses() -> None:
    (drafter,) = classify_text(DRAFTER)
    assert [(k.issue, k.fixed) for k in drafter.known] == [("vllm-project/vllm#38551", "0.27.1")]
    (target,) = classify_text(body("vllm/encoder-cache-miss-in-the-target-model.log"))
    assert [k.issue for k in target.known] == ["vllm-project/vllm#26777", "vllm-project/vllm#32469"]
    (unclear,) = classify_text("RuntimeError: Encoder cache miss for 9f8a1c.\n\n")
    assert unclear.known == ()
    (survived,) = classify_text("WARNING Encoder cache miss for 9f8a1c, skipping mm embedding\n\n")
    assert (survived.id, survived.severity) == ("encoder_cache_miss_skipped", "degraded")


@pytest.mark.parametrize("prefix", ["", "(APIServer pid=1) "])
def test_classifier_takes_the_field_of_a_setting_from_the_line_before(prefix: str) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/venv/vllm/engine/arg_utils.py", line 2838, in create_engine_config',
        "    cache_config = CacheConfig(",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig",
        "gpu_memory_utilization",
        "  Input should be less than or equal to 1 [type=less_than_equal, input_value=1.7, input_type=float]",
    ]
    (found,) = classify_text("\n".join(prefix + line for line in lines))
    assert found.id == "config_field_error"
    assert "gpu_memory_utilization: Input should be less than or equal to 1 (given: 1.7)" in found.title
    lines[-2] = "no name of a field"
    (found,) = classify_text("\n".join(prefix + line for line in lines))
    assert found.id == "config_invalid"


@pytest.mark.parametrize("run", ["x_", "a-", " ", "/", "(", "0"])
def test_classifier_takes_little_time_for_a_long_line(run: str) -> None:
    """Of the patterns some take quadratic time: a minute for these lines, if they see them whole."""
    long = (run * 120_000)[:120_000]
    begun = time.process_time()
    classify_text(
        f'[2026-03-02 08:11:45 TP0] Scheduler watchdog timeout {long}\nINFO: 127.0.0.1:1 - "POST /v1{long} HTTP/1.1" 500\n'
        f"INFO 11-20 15:53:40 {long}\nINFO 11-20 15:53:40 [x.py:1] POST {long}\n"
        f"RuntimeError: [TM][ERROR] CUDA runtime error: {long}"
    )
    assert time.process_time() - begun < 4


@pytest.mark.parametrize("number", ["9" * 5000, "1.2.3", "1e999", "\u00b2", "inf"])
def test_numbers_of_any_length_in_a_log_are_no_error(number: str) -> None:
    classify_text(
        f'Traceback (most recent call last):\n  File "x.py", line {number}, in f\nRuntimeError: x\n'
        f"#1 0x7f in f (a=1) at /x/y.cc:{number}\n{number}.00.000.000 I x\nvLLM API server version {number}\n"
        f"Engine 000: Avg prompt throughput: {number} tokens/s, Avg generation throughput: 0.0 tokens/s, "
        f"Running: {number} reqs, Waiting: {number} reqs\nOut of memory: Killed process {number} (python)\n"
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {number} GiB"
    )
    for document in (
        f'[["{number}", "RuntimeError: x"]]',
        f'[{{"time": "{number}", "message": "x"}}]',
        f'"time\r,{number},message"',
    ):
        assert list(log_lines([document], longest_line=1 << 20))
