from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.clients.common import END_OF_STREAM, Job, Marks, WholeAnswer
from bench.cost import page, plot
from bench.cost.truth import Seen, compare, of_marks
from bench.server import NO_EVENT, STAMP
from tests.rows import MS

TOKEN = b'data: {"choices":[{"delta":{"content":" %019d"}}]}\n\n'


def test_client_marks_give_errors_against_server_stamps(tmp_path: Path) -> None:
    job = Job("http://127.0.0.1:1", 1, 2, True, 0.0, b"", tmp_path / "out.json")
    marks = Marks(job)
    stamps = []
    for stream in range(2):
        pieces = marks.stream()
        stamps.append((stream, NO_EVENT, 0, 10 * MS))
        for event in range(11):
            sent = (100 + 20 * event) * MS
            stamps.append((stream, event, sent, sent))
            text = TOKEN % sent
            # Cut in the middle of a token: it counts from the piece that completes it, 3 ms late.
            pieces += [(sent + MS, text[:40]), (sent + 3 * MS, text[40:])]
        marks.done(well=True)
    marks.write()
    first, gaps = of_marks(tmp_path / "out.marks", 0, 10**12)
    assert first.tolist() == [[100 * MS, 103 * MS]] * 2
    assert gaps.tolist() == [20 * MS] * 20
    found = compare(Seen(2, 0, first, gaps=gaps), np.array(stamps, STAMP), 0, 10**12)
    assert found is not None
    assert (found.ttft_p50, found.ttft_p99, found.itl_p50, found.itl_p99) == (3.0, 3.0, 0.0, 0.0)
    whole = compare(Seen(2, 0, ttft=np.full(2, 95 * MS), gaps=gaps), np.array(stamps, STAMP), 0, 10**12)
    assert whole is not None
    assert whole.ttft_p50 == 5.0, "90 ms it took, from having read the request"
    assert int(np.fromfile(tmp_path / "out.marks", np.int64)[-1]) == END_OF_STREAM


@pytest.mark.parametrize("size", [1, 3, 50, 1000])
def test_answer_is_complete_however_it_is_cut(size: int) -> None:
    answers = {
        True: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        False: b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n0\r\n\r\nhello\r\n",
    }
    for stream, text in answers.items():
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        answer = WholeAnswer(stream=stream)
        assert [answer.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def trial(scenario: str, contender: str, us: float, repeat: int = 0, **more: Any) -> dict[str, Any]:
    figures = {"scenario": scenario, "contender": contender, "us": us, "repeat": repeat, "failed": 0, "said": {}}
    return {**figures, "server_core": 0.4, "server_late": 0.001, "core": 0.5, "rate": 1000.0, **more}


def test_cost_page_names_met_and_missed_targets() -> None:
    machine = {
        "commands": ["python -m bench.cost"], "cpu": "X", "cores": 2, "kernel": "6", "python": "3.11",
        "compiler": "cc", "urgent": True, "versions": {"locust": "2.47"},
    }  # fmt: skip
    late: dict[str, Any] = {"ttft_p50": 0.1, "ttft_p99": 7.0, "itl_p50": 0.0, "itl_p99": 0.5}
    trials = [
        # Ratios are taken within a repeat: the second found the machine twice as slow.
        *(trial("small", "loadchaos", 30.0 * n, n) for n in (1, 2)),
        *(trial("small", "fast_raw", 100.0 * n, n) for n in (1, 2)),
        trial("streams_512", "loadchaos", 50.0, 0, **late),
        trial("streams_512", "c", 10.0, 0, **late),
        {"scenario": "marginal", "contender": "aiperf", "absent": "aiperf is not installed", "repeat": 0},
    ]
    text = page.render({"machine": machine, "trials": trials})
    assert "CPU of FastHttpUser | 0.30 times | met |" in text
    assert "4 times the CPU of a C client | 5.00 times | **not met** |" in text
    assert "Reason: each token wakes the process" in text
    assert "median error at most 0.5 ms | 0.10 ms (1 trial) | met |" in text
    assert "p99 error at most 2 ms | 7.00 ms (1 trial) | **not met** |" in text
    assert "not measured" in text
    assert "| **loadchaos**, complete | 45.0 | – | 0.30 |" in text
    assert plot.render({"trials": trials}).count("<circle") == 2 + 2 + 2
