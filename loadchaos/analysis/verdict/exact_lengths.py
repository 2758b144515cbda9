"""Compare planned prompt and output lengths with the reported usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadchaos.analysis.mechanisms import Check
from loadchaos.core.model import Row

_EXAMPLES = 3
_BLIND_SHARE = 0.01


class ExactLengths:
    """Folds end rows of ok answers with usage; `mismatches` counts by figure."""

    def __init__(self) -> None:
        self.mismatches: Counter[str] = Counter()
        self._compared: Counter[str] = Counter()
        self._uncounted: Counter[str] = Counter()
        self._unlike: dict[str, Counter[tuple[str, int]]] = {"length_mismatch": Counter(), "output_mismatch": Counter()}

    def feed(self, row: Row) -> None:
        """Fold one end row."""
        if row.get("outcome") != "ok":
            return
        self._compare("length_mismatch", row, row.get("planned_tokens"), row.get("prompt_tokens"))
        self._compare("output_mismatch", row, row.get("exact_tokens"), row.get("completion_tokens"))

    def _compare(self, figure: str, row: Row, planned: int | None, counted: int | None) -> None:
        if planned is None:
            return
        if counted is None:
            self._uncounted[figure] += 1
            return
        self._compared[figure] += 1
        if planned != counted:
            self.mismatches[figure] += 1
            unlike, key = self._unlike[figure], (str(row.get("traffic")), counted - planned)
            if key in unlike or len(unlike) < 1000:
                unlike[key] += 1

    def checks(self, expect: Sequence[str]) -> list[Check]:
        """One check per compared figure.

        It fails on any mismatch, unless `expect` has a bound of its own for it. Exact outputs without usage prove nothing.
        """
        return [
            self._check(figure, name, what, bounded=any(figure in text for text in expect))
            for figure, name, what in (
                ("length_mismatch", "exact_lengths", "prompts"),
                ("output_mismatch", "exact_outputs", "outputs"),
            )
            if self._compared[figure] or (figure == "output_mismatch" and self._uncounted[figure])
        ]

    def _check(self, figure: str, name: str, what: str, *, bounded: bool) -> Check:
        n, wrong, blind = self._compared[figure], self.mismatches[figure], self._uncounted[figure]
        examples = "; ".join(
            f"{traffic}: {by:+d} in {k}" for (traffic, by), k in self._unlike[figure].most_common(_EXAMPLES)
        )
        actual = f"{n - wrong:,} of {n:,} {what}" + (f" ({examples})" if wrong else "")
        if wrong and not bounded:
            return Check(name, "usage as planned", actual, "fail")
        if figure == "output_mismatch" and blind > _BLIND_SHARE * (n + blind):
            actual += f"; {blind:,} answers carry no usage"
            return Check("exact_outputs", "usage as planned", actual, "unknown")
        return Check(name, "usage as planned", actual, "pass")
