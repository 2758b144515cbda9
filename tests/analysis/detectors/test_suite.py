import pytest

from loadchaos.analysis.detectors import suite
from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.model import Row
from tests.analysis.conftest import History


class ToyDetector(Detector):
    def __init__(self) -> None:
        self._teapots: list[int] = []
        self._polled = 0

    def on_end(self, row: Row) -> None:
        if row.get("status") == 418:
            self._teapots.append(int(row["at_ns"]))

    def poll(self, now_ns: int) -> list[Failure]:
        new, self._polled = self._teapots[self._polled :], len(self._teapots)
        title = "The server is a teapot"
        return [
            Failure("teapot", "degraded", title, evidence("figures", f"at {at_ns} of {now_ns}"), at_ns) for at_ns in new
        ]

    def finish(self) -> list[Finding]:
        return [CheckResult("teapots", "0", str(len(self._teapots)), "fail"), "teapots were counted"]


def test_suite_runs_a_detector_added_to_the_table(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "DETECTORS", [*suite.DETECTORS, ToyDetector])
    verdict = history.begin().work(5).answer(history.send(2), status=418).work(15).end().verdict()
    assert [(f["id"], f["count"], f["title"]) for f in verdict["failures"]] == [("teapot", 2, "The server is a teapot")]
    assert verdict["failures"][0]["incident"].endswith("teapot")
    assert {"name": "teapots", "expected": "0", "actual": "2", "verdict": "fail"} in verdict["checks"]
    assert "teapots were counted" in verdict["notes"]
    assert verdict["verdict"] == "fail"
