"""Tell requests that waited in a working server's queue from lost ones.

A server that takes requests in their order answers none that came later first. Where one that came later has its answer,
the request was lost or passed over, and where no token came to anybody, the server stood still.
"""

from __future__ import annotations

import re

from loadchaos.analysis.incidents.bad_answers import BadAnswer
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.units import NS_PER_S

_LATER_NS = NS_PER_S  # requests of one second may overtake each other on their way to the queue
_WORKS_NS = 10 * NS_PER_S
_KEPT_S = 900
_LIMIT = re.compile(r" (?:for|within) ([\d.e+]+) s$")  # as the client words it


class QueueOrder(RowFold):
    """Times of sending and of first tokens, by second."""

    def __init__(self) -> None:
        self._first_token_ns: dict[int, int] = {}  # earliest first token, by second of sending
        self._streamed_ns: dict[int, int] = {}  # earliest first token, by second of the last byte

    def on_end(self, row: EndRow) -> None:
        token_ns, sent_ns = row.get("first_token_ns"), row.get("sent_ns")
        if token_ns is None or sent_ns is None:
            return
        last_ns = int(row.get("last_byte_ns") or row["at_ns"])
        for times, second in ((self._first_token_ns, sent_ns // NS_PER_S), (self._streamed_ns, last_ns // NS_PER_S)):
            times[second] = min(times.get(second, token_ns), token_ns)
            if len(times) > 2 * _KEPT_S:
                for old in [s for s in times if s < second - _KEPT_S]:
                    del times[old]

    def waited(self, bad: BadAnswer) -> bool:
        """Tell whether a request without an answer only waited for its turn."""
        if bad.outcome not in ("stalled", "timeout") or bad.began:
            return False
        later = (bad.sent_ns + _LATER_NS) // NS_PER_S + 1
        until_ns = _until_ns(bad)
        if any(second >= later and token_ns < until_ns for second, token_ns in self._first_token_ns.items()):
            return False
        since = (until_ns - _WORKS_NS) // NS_PER_S
        return any(second >= since and token_ns <= until_ns for second, token_ns in self._streamed_ns.items())


def _until_ns(bad: BadAnswer) -> int:
    """Time when its limit had passed; a busy client notices it later."""
    limit = _LIMIT.search(bad.text)
    return min(bad.at_ns, bad.sent_ns + round(float(limit[1]) * NS_PER_S)) if limit else bad.at_ns
