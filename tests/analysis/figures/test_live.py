from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.requests import Part
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.judge import Judge
from loadchaos.core.histogram import bucket
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.model import Terms
from loadchaos.report.metrics.exporter import families
from tests.report.made_up_run import counted_by_hand
from tests.rows import MS, S, answered, folded, metrics_row


def figures_of(folder: RunFolder) -> LiveFigures:
    fold = folded(LiveFigures(), Reader(folder).new(final=True))
    fold.finish()
    return fold


def test_fold_totals_equal_the_ledger(run_folder: RunFolder) -> None:
    fold = figures_of(run_folder)
    totals = {(t, o): n for t, traffic in fold.figures.requests.traffic.items() for o, n in traffic.outcomes.items()}
    assert totals == counted_by_hand(run_folder)
    assert {o for _, o in totals} == {"ok", "reset", "missed", "unfinished"}


def test_fold_of_many_workers_equals_one(make_run: Callable[..., RunFolder], tmp_path: Path) -> None:
    one = figures_of(make_run(tmp_path / "one"))
    three = figures_of(make_run(tmp_path / "three", workers=3))
    assert one.figures.requests.begun == three.figures.requests.begun
    assert len(three.workers) == 3


def test_fold_counts_preemptions_since_the_run_began() -> None:
    fold = folded(LiveFigures(), [metrics_row(1, preemptions_total=400), metrics_row(2, preemptions_total=403)])
    assert fold.snapshot().preemptions == 3
    assert folded(fold, [metrics_row(3, preemptions_total=2)]).snapshot().preemptions == 2, "a new server counts from 0"


def test_fold_attack_is_active_between_begin_and_end() -> None:
    fold = LiveFigures()
    fold.fold({"row": "attack", "attack": "pause", "n": 1, "replica": "a", "what": "begin", "at_ns": 1})
    assert [a.name for a in fold.snapshot().attacks_in_force] == ["pause"]
    fold.fold({"row": "attack", "attack": "pause", "n": 1, "replica": "a", "what": "end", "ok": False, "at_ns": 2})
    assert fold.snapshot().attacks_in_force == ()
    fold.fold({"row": "attack", "attack": "pause", "n": 2, "replica": "a", "what": "end", "ok": None, "at_ns": 3})
    assert fold.snapshot().attacks == {("pause", "failed"): 1}, "an act without an answer did not work"


def test_fold_rates_cover_the_last_ten_seconds(run_folder: RunFolder) -> None:
    snapshot = figures_of(run_folder).snapshot()
    assert snapshot.tokens_per_s == 0  # dead for ten seconds
    assert snapshot.load_s == 40


def test_fold_ignores_unknown_rows() -> None:
    fold = LiveFigures()
    for kind in ("new", None):
        fold.fold({"row": kind})
    assert fold.snapshot().now_ns == 0


def test_fold_counts_a_growing_gap_once() -> None:
    fold = LiveFigures()
    for at_s, seconds in ((100, 0.0), (110, 10.0), (120, 20.0), (123, 23.0), (200, 1.0)):
        row = {"row": "gap", "at_ns": at_s * 10**9, "replica": "a", "source": "scrape", "seconds": seconds}
        fold.fold(row)
        fold.fold({**row, "replica": "b", "source": "log", "seconds": 0.5})
    assert fold.gaps_s["scrape"] == 24
    assert fold.gaps_s["log"] == 2.5


def test_fold_shows_no_unsettled_id_at_the_end_of_the_load() -> None:
    fold = LiveFigures()
    opened = Incident(1, "death", "a", 0)
    opened.causes = [Failure("engine_core_proc_died", "engine_death", "It died", evidence("signs", "gone"), 0)]
    fold.name_incidents([opened])
    fold.fold({"row": "run", "what": "end", "at_ns": 1})
    assert (fold.snapshot().incidents, fold.snapshot().failures) == ((), ())
    opened.causes = [Failure("encoder_cache_miss", "engine_death", "It missed", evidence("signs", "gone"), 0)]
    fold.name_incidents([opened])
    fold.finish()
    assert [f.id for f in fold.snapshot().failures] == ["encoder_cache_miss"]


def test_fold_counts_goodput_as_the_verdict_does() -> None:
    terms: dict[str, Any] = {"slo": {"ttft": 0.5, "tpot": 0.1}, "warm_up": {"phases": [0]}}
    fold, judge = LiveFigures(), Judge(Terms("p", **terms))
    rows: list[dict[str, Any]] = [{"row": "run", "what": "begin", "at_ns": 1, "terms": terms}]
    for n, (ttft_s, outcome) in enumerate([(0.2, "ok"), (0.9, "ok"), (0.2, "reset"), (0.2, "aborted"), (0.4, "ok")]):
        due_ns, took_ns = (10 + n) * S, round((ttft_s + 0.5) * S)
        end = {"first_token_ns": due_ns + round(ttft_s * S), "completion_tokens": 11, "itl_hist": {bucket(50 * MS): 10}}
        rows += answered(due_ns, n, took_ns=took_ns, traffic="t", phase=1, outcome=outcome, **end)
    rows.append({"row": "missed", "at_ns": 16 * S, "traffic": "t", "phase": 1, "why": "no_slot", "count": 2})
    rows.append({"row": "missed", "at_ns": 17 * S, "traffic": "t", "phase": 0, "why": "no_slot", "count": 9})
    folded(fold, rows)
    folded(judge, rows)
    found = judge.verdict().to_json()["goodput"]
    assert fold.figures.goodput.parts()["t"] == Part(found["good"], found["due"]) == Part(2, 6)
    page = {m.name: m for m in families(fold, "r")}
    assert [s.value for s in page["loadchaos_slo_good_requests"].samples] == [2]
    assert [s.value for s in page["loadchaos_slo_requests"].samples] == [6]
    counts = {s.labels["le"]: s.value for s in page["loadchaos_tpot_seconds"].samples if "le" in s.labels}
    assert (counts["0.025"], counts["0.075"], counts["+Inf"]) == (0, 3, 3), "0.5 s over ten tokens"


def test_requests_without_a_slot_are_no_goodput_where_there_are_no_limits() -> None:
    fold = LiveFigures()
    fold.fold({"row": "run", "what": "begin", "at_ns": 1, "terms": {}})
    fold.fold({"row": "missed", "at_ns": 2, "traffic": "t", "phase": 0, "why": "no_slot", "count": 3})
    assert fold.snapshot().goodput == {}
