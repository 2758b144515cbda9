"""Statistics that say no token for half a minute are a hang, in a file and live."""

import pytest

from loadchaos.analysis.classify.classifier import Classifier, classify_text
from loadchaos.analysis.classify.live import LiveClassifier
from tests.rows import S

VLLM = (
    "(APIServer pid=1) INFO 08-14 09:{m:02d}:{s:02d} [loggers.py:271] Engine 000: Avg prompt throughput: {made} tokens/s, "
    "Avg generation throughput: {made} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 22.0%"
)
SGLANG = (
    "[2026-06-04 09:{m:02d}:{s:02d} TP0] Decode batch. #running-req: {running}, #token: 610112, token usage: 0.97, "
    "gen throughput (token/s): {made}, #queue-req: {waiting}"
)
LMDEPLOY = (
    "[2026-06-04 09:{m:02d}:{s:02d} DP0] Avg thr (in/out): 0.0 / {made} tokens/s, Server (succeeded/failed/routed/waiting): "
    "1 / 0 / 1 / 0, Engine (running/waiting): {running} / {waiting}, KV cache: 0.1%, "
)


def log(form: str, made: list[str], *, running: int = 4, waiting: int = 2) -> str:
    lines = (form.format(m=n // 6, s=n % 6 * 10, made=m, running=running, waiting=waiting) for n, m in enumerate(made))
    return "INFO:     Application startup complete.\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("form", [VLLM, SGLANG, LMDEPLOY], ids=["vllm", "sglang", "lmdeploy"])
def test_engine_without_a_token_for_half_a_minute_hangs(form: str) -> None:
    [failure] = classify_text(log(form, ["410.1", *["0.0"] * 5]))
    assert (failure.id, failure.severity) == ("engine_stands_still", "hang")
    assert failure.title == "The engine made no token for 40 s: 4 requests running, 2 waiting"
    assert failure.evidence.line == 3


@pytest.mark.parametrize("form", [VLLM, SGLANG, LMDEPLOY], ids=["vllm", "sglang", "lmdeploy"])
@pytest.mark.parametrize(
    ("made", "running"),
    [(["410.1", "0.0", "0.0", "3.0", "0.0", "0.0", "9.0"], 4), (["0.0"] * 9, 0)],
    ids=["short pauses", "no request"],
)
def test_engine_that_works_or_has_nothing_to_do_is_silent(form: str, made: list[str], running: int) -> None:
    assert classify_text(log(form, made, running=running, waiting=0)) == []


def test_hang_is_told_while_it_lasts() -> None:
    live = LiveClassifier()
    for n, line in enumerate(log(VLLM, ["410.1", *["0.0"] * 4]).splitlines(), 1):
        live.on_log(
            {"row": "log", "at_ns": 10 * n * S, "file": "server.log", "source": "server", "line": n, "text": line},
            10 * n * S,
        )
    assert [f.id for f in live.poll(63 * S)] == ["engine_stands_still"]


def test_hang_of_a_restarted_server_is_one_of_its_own() -> None:
    stuck = ["410.1", *["0.0"] * 5]
    started = "(APIServer pid=9) INFO 08-14 09:01:00 [api_server.py:1] vLLM API server version 0.32.0\n"
    text = log(VLLM, stuck) + started + log(VLLM, [*stuck, "0.0"]).replace("08-14 09:", "08-14 11:")
    assert [(f.title.split(":")[0], f.evidence.line) for f in classify_text(text)] == [
        ("The engine made no token for 40 s", 3),
        ("The engine made no token for 50 s", 11),
    ]


def test_each_of_two_engines_that_stand_still_has_its_own_time() -> None:
    other = VLLM.replace("Engine 000", "Engine 001")
    lines = [log(form, ["410.1", *["0.0"] * 5]).splitlines()[1:] for form in (VLLM, other)]
    text = "INFO:     Application startup complete.\n" + "\n".join(
        line for pair in zip(*lines, strict=True) for line in pair
    )
    classifier = Classifier()
    matches = [m for n, line in enumerate(text.splitlines(), 1) for m in classifier.feed(line, line_no=n)]
    assert [m.title.split(":")[0] for m in matches if m.severity == "hang"] == ["The engine made no token for 40 s"] * 2


def test_statistics_without_a_token_are_no_answer() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/x/multiprocessing/process.py", line 314, in _bootstrap\n    self.run()\n'
        '  File "/x/vllm/v1/engine/core.py", line 1, in run\n    raise Strange("x")\nStrange: x\n'
    )
    served = '(APIServer pid=1) INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    [failure] = classify_text(served + trace + VLLM.format(m=0, s=0, made="0.0", running=3, waiting=0) + "\n")
    assert failure.severity == "engine_death"
