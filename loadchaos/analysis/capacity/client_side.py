"""Signs that the load generator, and not the server, limits a step."""

from __future__ import annotations

from loadchaos.analysis.capacity.step_columns import ClientFigures
from loadchaos.analysis.figures.requests import PhaseStats
from loadchaos.core.latency import send_delay_ns
from loadchaos.core.ledger.rows import EndRow, HeartbeatRow
from loadchaos.core.units import seconds_of

_BUSY = 0.95
_FEWEST_BEATS = 8


class ClientLoad:
    """Send delays and CPU use of our own workers."""

    def __init__(self, open_loop: bool) -> None:
        self._open = open_loop
        self._sent = PhaseStats()
        self._cpu: list[float] = []

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self._cpu.append(float(row.get("cpu_share") or 0.0))

    def on_end(self, row: EndRow) -> None:
        delay_ns = send_delay_ns(row)
        if delay_ns is not None:
            self._sent.lag.add(delay_ns)
            self._sent.on_end(row)

    def limit_reason(self) -> str | None:
        if self._open and (late_ns := self._sent.late_ns()) is not None:
            return f"our own client sends late: the median delay is {late_ns / 1e6:.0f} ms"
        busy = self._busy()
        if busy is not None and busy >= _BUSY:
            return f"our own client uses {100 * busy:.0f} % of a core"
        return None

    def _busy(self) -> float | None:
        """Median CPU use of the last two thirds of the step."""
        beats = sorted(self._cpu[len(self._cpu) // 3 :])
        return beats[len(beats) // 2] if len(beats) >= _FEWEST_BEATS else None

    def figures(self) -> ClientFigures:
        return ClientFigures(
            cpu_share=self._busy(),
            limit=self.limit_reason(),
            send_delay_p50_s=seconds_of(self._sent.lag.quantile(0.5), 4),
            send_delay_p99_s=seconds_of(self._sent.lag.quantile(0.99), 4),
        )
