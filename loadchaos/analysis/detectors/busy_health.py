"""Note a health page that fails while requests are answered: a load balancer that asks it takes the server out."""

from __future__ import annotations

from collections import Counter, deque

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.core.ledger.rows import EndRow, ProbeRow

_FEWEST = 2
_MOST_PENDING = 200


class BusyHealth(Detector):
    """Folds probe and ok end rows. A probe counts where a request was in flight that was answered."""

    def __init__(self) -> None:
        super().__init__()
        self._probes: deque[tuple[int, int, str]] = deque(maxlen=_MOST_PENDING)  # time, status, page
        self._counts: Counter[tuple[str, int]] = Counter()  # by page and status

    def on_probe(self, row: ProbeRow) -> None:
        if row.get("what") == "health" and row.get("status") is not None:
            self._probes.append((row["at_ns"], int(row["status"] or 0), str(row.get("path") or "/health")))

    def on_end(self, row: EndRow) -> None:
        sent_ns = row.get("sent_ns")
        if row.get("outcome") != "ok" or sent_ns is None:
            return
        while self._probes and self._probes[-1][0] > sent_ns:
            _, status, page = self._probes.pop()
            self._counts[page, status] += 1

    def finish(self) -> list[Finding]:
        found = list[Finding]()
        for (page, status), n in sorted(self._counts.items()):
            if status >= 500 and n >= _FEWEST:
                probes = sum(count for (name, _), count in self._counts.items() if name == page)
                found.append(
                    f"{page} was {status} in {n:,} of {probes:,} probes while requests were answered: a load balancer would "
                    "take this server out"
                )
        return found
