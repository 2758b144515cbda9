from loadchaos.analysis.figures.reported import WireFigures, compare_reported
from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.reported_figures import ReportedFigures
from tests.rows import MS

REPORTED = ReportedFigures(
    tool="vllm bench serve",
    requests_sent=400,
    requests_ok=400,
    requests_failed=0,
    ttft_s={"p50": 0.2, "p99": 0.412},
    tpot_s={"p99": 0.0102},
    output_tokens=1000,
)
OTHER_TEXT = {"hold another request's text": 2}


def test_sentence_puts_the_faults_beside_what_was_reported() -> None:
    wire = WireFigures(
        outcomes={"ok": 393, "truncated": 7},
        findings=OTHER_TEXT,
        ttft_s={"p50": 0.19, "p99": 0.374},
        tpot_s={"p99": 0.01},
    )
    assert compare_reported(REPORTED, wire).sentence == (
        "reported 400 of 400 ok; of 400 on the wire 7 were cut without finish_reason, 2 hold another request's text; "
        "TTFT p99 reported 412 ms, on the wire 374 ms"
    )


def test_rows_have_the_figures_that_were_reported() -> None:
    wire = WireFigures(
        outcomes={"ok": 393, "truncated": 7}, findings=OTHER_TEXT, ttft_s={"p99": 0.374}, output_tokens=950
    )
    found = compare_reported(REPORTED, wire)
    assert [(row.name, row.reported, row.wire, row.differs) for row in found.rows] == [
        ("requests", 400, 400, False),
        ("requests ok", 400, 391, True),
        ("requests failed", 0, 9, True),
        ("output tokens", 1000, 950, True),
        ("TTFT p50", 0.2, None, False),
        ("TTFT p99", 0.412, 0.374, True),
        ("TPOT p99", 0.0102, None, False),
    ]
    assert found.hidden == 9 and found.note == f"vllm bench serve {found.sentence}"


def test_an_answer_with_two_faults_is_hidden_once() -> None:
    wire = WireFigures(outcomes={"ok": 400}, findings={"have no text": 400, "hold another request's text": 300})
    found = compare_reported(REPORTED, wire)
    assert [row.wire for row in found.rows if row.name in ("requests ok", "requests failed")] == [0, 400]
    assert found.hidden == 400


def test_figures_that_agree_do_not_differ() -> None:
    wire = WireFigures(
        outcomes={"ok": 400}, ttft_s={"p50": 0.199, "p99": 0.4}, tpot_s={"p99": 0.01}, output_tokens=1000
    )
    found = compare_reported(REPORTED, wire)
    assert not any(row.differs for row in found.rows)
    assert (
        found.sentence
        == "reported 400 of 400 ok; of 400 on the wire all were ok; TTFT p99 reported 412 ms, on the wire 400 ms"
    )


def test_other_latency_is_told_where_it_differs() -> None:
    wire = WireFigures(outcomes={"ok": 400}, ttft_s={"p99": 0.412}, tpot_s={"p99": 0.06})
    assert compare_reported(REPORTED, wire).sentence.endswith("TPOT p99 reported 10.2 ms, on the wire 60 ms")


def test_percentile_of_too_few_answers_is_not_told() -> None:
    """Tools interpolate: their p99 of 30 answers is another figure."""
    wire = WireFigures(outcomes={"ok": 30}, ttft_s={"p50": 0.25, "p99": 0.5})
    found = compare_reported(REPORTED, wire)
    assert found.sentence.endswith("; TTFT p50 reported 200 ms, on the wire 250 ms")


def test_file_that_says_little_gives_few_rows() -> None:
    found = compare_reported(ReportedFigures(tool="k6", requests_sent=3), WireFigures(outcomes={"ok": 2, "shed": 1}))
    assert [(row.name, row.reported, row.wire) for row in found.rows] == [("requests", 3, 3)] and not found.note
    assert found.sentence == "of 3 on the wire 1 were shed"


def test_wire_figures_are_those_of_the_histograms() -> None:
    latency = LatencyHistograms()
    for number in range(1, 101):
        latency.ttft.add(number * MS)
    wire = WireFigures.of({"ok": 100}, latency, 10)
    assert abs(wire.ttft_s["p50"] - 0.05) < 0.001
    assert (wire.tpot_s, wire.output_tokens, wire.requests) == ({}, 10, 100)


def test_itl_that_differs_has_its_reason_and_is_not_in_the_sentence() -> None:
    reported = ReportedFigures(tool="vllm bench serve", requests_sent=400, requests_ok=400, itl_s={"mean": 0.010})
    found = compare_reported(reported, WireFigures(outcomes={"ok": 400}, itl_s={"mean": 0.013}))
    (row,) = [row for row in found.rows if row.name == "ITL mean"]
    assert (row.differs, row.why) == (True, "chunks that arrive together are one here")
    assert "ITL" not in found.sentence
    same = compare_reported(reported, WireFigures(outcomes={"ok": 400}, itl_s={"mean": 0.010}))
    assert {row.why for row in same.rows} == {""}
