"""Compare planned prompt and output lengths with the reported usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadchaos.analysis.mechanisms import Check
from loadchaos.core.model import Row

_EXAMPLES = 3


class ExactLengths:
    """Folds end rows of ok answers with usage; `mismatches` counts by figure."""

    def __init__(self) -> None:
        self.mismatches: Counter[str] = Counter()
        self._compared: Counter[str] = Counter()
        self._unlike: dict[str, Counter[tuple[str, int]]] = {"length_mismatch": Counter(), "output_mismatch": Counter()}

    def feed(self, row: Row) -> None:
        """Fold one end row."""
        if row.get("outcome") != "ok":
            return
        self._compare("length_mismatch", row, row.get("planned_tokens"), row.get("prompt_tokens"))
        self._compare("output_mismatch", row, row.get("exact_tokens"), row.get("completion_tokens"))

    def _compare(self, figure: str, row: Row, planned: int | None, counted: int | None) -> None:
        if planned is None or counted is None:
            return
        self._compared[figure] += 1
        if planned != counted:
            self.mismatches[figure] += 1
            unlike, key = self._unlike[figure], (str(row.get("traffic")), counted - planned)
            if key in unlike or len(unlike) < 1000:
                unlike[key] += 1

    def checks(self, expect: Sequence[str]) -> list[Check]:
        """One check per compared figure.

        It fails on any mismatch, unless `expect` has a bound of its own for it.
        """
        return [
            self._check(figure, name, what, bounded=any(figure in text for text in expect))
            for figure, name, what in (
                ("length_mismatch", "exact_lengths", "prompts"),
                ("output_mismatch", "exact_outputs", "outputs"),
            )
            if self._compared[figure]
        ]

    def _check(self, figure: str, name: str, what: str, *, bounded: bool) -> Check:
        n, wrong = self._compared[figure], self.mismatches[figure]
        examples = "; ".join(
            f"{traffic}: {by:+d} in {k}" for (traffic, by), k in self._unlike[figure].most_common(_EXAMPLES)
        )
        actual = f"{n - wrong:,} of {n:,} {what}" + (f" ({examples})" if wrong else "")
        return Check(name, "usage as planned", actual, "fail" if wrong and not bounded else "pass")
