import io
import os
from dataclasses import replace

import pytest
from rich.console import Console

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.snapshot import Percentiles, Snapshot, TrafficLine
from loadchaos.analysis.figures.stalls import Stall
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.rows import at_ns_of
from loadchaos.report.terminal.live import View, draw, plain_events, plain_line, progress_text
from tests.rows import S, answered, folded


def drawn(snapshot: Snapshot, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(draw(snapshot))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def at_the_end(folder: RunFolder) -> LiveFigures:
    fold = folded(LiveFigures(), Reader(folder).new(final=True))
    fold.fold(
        {
            "row": "failure",
            "id": "encoder_cache_miss",
            "severity": "engine_death",
            "count": 1,
            "title": "freed too early",
            "known": ["vllm-project/vllm#38551"],
        }
    )
    return fold


def test_live_view_shows_traffic_latency_state_attacks_and_failures(run_folder: RunFolder) -> None:
    picture = drawn(at_the_end(run_folder).snapshot())
    for part in (
        "mtp_mm",
        "EMBEDDED",
        "dead for",
        "images",
        "connection reset",
        "TTFT",
        "reset_mm_cache 7",
        "engine death: encoder_cache_miss",
        "issues/38551",
    ):
        assert part in picture
    assert max(len(line) for line in picture.splitlines()) <= 80
    assert "\x1b" not in picture


def test_live_view_shows_recent_latencies(run_folder: RunFolder) -> None:
    fold = LiveFigures()
    for row in Reader(run_folder).new(final=True):
        if row["row"] == "header" or at_ns_of(row) <= 5_020_000_000_000:
            fold.fold(row)
    picture = drawn(fold.snapshot())
    assert "ITL p50" in picture
    assert "healthy for 21.0 s" in picture
    assert "KV cache" in picture


def test_live_view_marks_latencies_that_mean_nothing_and_leaves_out_a_p99_of_few_samples() -> None:
    recent = {"ttft": Percentiles(0.1, 0.3, 300), "itl": Percentiles(0.01, 0.03, 20)}
    picture = drawn(Snapshot(traffic=(TrafficLine("t", 1, 1, (), {}),), recent=recent, void={"itl": "bursts"}))
    assert "TTFT p50 100 ms p99 300 ms  ITL ? p50 10.0 ms p99 –" in picture


def test_live_view_of_an_empty_snapshot() -> None:
    assert "not checked yet" in drawn(Snapshot())


def test_plain_log_prints_a_line_every_ten_seconds_and_events_at_once(run_folder: RunFolder) -> None:
    stream, fold, shown = io.StringIO(), LiveFigures(), 0
    view = View(stream)
    assert view.plain
    for row in Reader(run_folder).new(final=True):
        fold.fold(row)
        if fold.now_ns - shown > 250_000_000:
            shown = fold.now_ns
            view.show(fold.snapshot())
    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("[load ")]) in {4, 5}
    assert len([line for line in lines if line.startswith("  server dead: the engine core's process is gone")]) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("names", "line"), [(("a", "b"), "  b dead: it is gone"), (("b",), "  server dead: it is gone")]
)
def test_plain_log_names_the_server_where_there_are_several(names: tuple[str, ...], line: str) -> None:
    fold = LiveFigures()
    for name in names:
        state = "dead" if name == "b" else "healthy"
        row = {"row": "state", "at_ns": 1, "replica": name, "engine": None, "from": "starting", "to": state}
        fold.fold({**row, "signs": ["it is gone"], "noticed_after_ns": 0})
    assert line in [text for _, text in plain_events(fold.snapshot())]


def test_plain_log_prints_each_failure_once() -> None:
    stream, fold = io.StringIO(), LiveFigures()
    view = View(stream)
    for count in range(3):
        fold.fold({"row": "failure", "id": "boom", "severity": "hang", "title": "stood still", "count": count})
        view.show(fold.snapshot())
    view.close(fold.snapshot())
    assert stream.getvalue().count("hang: boom: stood still") == 1


def test_plain_log_prints_the_last_snapshot_once(run_folder: RunFolder) -> None:
    stream, snapshot = io.StringIO(), at_the_end(run_folder).snapshot()
    view = View(stream)
    view.show(snapshot)
    view.close(snapshot)
    assert len([line for line in stream.getvalue().splitlines() if line.startswith("[load ")]) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_view_clears_a_resized_terminal_once(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    size = os.terminal_size((100, 40))
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: size)
    screen = Terminal()
    view, snapshot = View(screen), at_the_end(run_folder).snapshot()
    view.show(snapshot)
    view.show(snapshot)
    assert "\x1b[2J" not in screen.getvalue()
    size = os.terminal_size((60, 40))
    view.show(snapshot)
    view.show(snapshot)
    assert screen.getvalue().count("\x1b[2J") == 1
    view.close()


@pytest.mark.parametrize(
    ("terms", "run", "done", "at_s", "text"),
    [
        ({"planned_requests": 200}, {}, 50, 10, "50 of 200 requests (25 %), about 30.0 s left"),
        ({"planned_requests": 200}, {}, 4, 10, "4 of 200 requests (2 %)"),
        ({"planned_requests": 200, "planned_s": 40.0}, {}, 4, 10, "4 of 200 requests (2 %), about 30.0 s left"),
        ({"planned_s": 60.0}, {}, 4, 12, "12.0 s of 60.0 s, about 48.0 s left"),
        ({"planned_s": 60.0}, {"duration_s": 30.0}, 4, 12, "12.0 s of 30.0 s, about 18.0 s left"),
        ({}, {}, 50, 10, ""),
    ],
)
def test_progress_has_requests_done_and_time_left(
    terms: dict[str, object], run: dict[str, object], done: int, at_s: int, text: str
) -> None:
    fold, begin = LiveFigures(), 100 * S
    fold.fold({"row": "run", "what": "begin", "at_ns": 90 * S, "terms": terms, **run})
    fold.fold({"row": "run", "what": "load_begin", "at_ns": 95 * S})
    assert progress_text(fold.snapshot()) == ""
    for n in range(done):
        folded(fold, answered(begin, n, took_ns=at_s * S))
    found = fold.snapshot()
    assert progress_text(found) == text
    assert text in drawn(found, 120)
    fold.fold({"row": "run", "what": "load_end", "at_ns": begin + 20 * S})
    assert progress_text(fold.snapshot()) == ""


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({"planned_requests": 3}, "2 of 3 requests (66 %), waiting for the last 1 answer"),
        ({"planned_s": 20.0}, "20.0 s of 20.0 s, waiting for the last 1 answer"),
    ],
)
def test_progress_names_no_time_once_all_was_sent(terms: dict[str, object], text: str) -> None:
    fold = folded(LiveFigures(), [{"row": "run", "what": "begin", "at_ns": 90 * S, "terms": terms}])
    fold.fold({"row": "run", "what": "load_begin", "at_ns": 95 * S})
    for n in range(2):
        folded(fold, answered(100 * S, n))
    fold.fold(answered(101 * S, 2)[0])
    assert progress_text(fold.snapshot(130 * S)) == text


def test_a_stall_is_told_once_and_shown_while_it_goes_on() -> None:
    stall = Stall(100 * S, 109 * S, 12, streams=3)
    stream, now = io.StringIO(), Snapshot(now_ns=109 * S, stall=stall, traffic=(TrafficLine("t", 1, 1, (), {}),))
    view = View(stream)
    view.show(now)
    view.show(replace(now, now_ns=110 * S, stall=replace(stall, end_ns=110 * S)))
    assert stream.getvalue().count("stall: ") == 1
    assert "stall: no token and no answer for 9.0 s, 12 requests wait" in stream.getvalue()
    assert "12 requests wait" in drawn(now)
    assert "12 requests wait" not in drawn(replace(now, now_ns=111 * S))


def test_live_view_tells_a_pause_only_during_the_load() -> None:
    now = Snapshot(load_s=1.0, paused="waiting for the server", traffic=(TrafficLine("t", 1, 1, (), {}),))
    assert "paused: waiting" in plain_line(now)
    assert "paused: waiting" in drawn(now)
    assert "paused" not in plain_line(replace(now, load_over=True)) + drawn(replace(now, load_over=True))
