"""Compare planned prompt and output lengths with the reported usage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median_low

from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import Decision

_EXAMPLES = 3
_BLIND_SHARE = 0.01
_ALIKE = 0.05
_ALIKE_TOKENS = 2
"""Estimates of so few tokens more or less are those that were asked for, however short the prompt is."""


class _Asked:
    """Prompt lengths of one traffic as they were asked for and counted, where the plan knows none."""

    def __init__(self) -> None:
        self._asked: Counter[int] = Counter()
        self._counted: Counter[int] = Counter()

    def add(self, asked: int, counted: int) -> None:
        self._asked[asked] += 1
        self._counted[counted] += 1

    def differs(self) -> bool:
        asked, counted = self._medians()
        return abs(counted - asked) > max(_ALIKE_TOKENS, _ALIKE * asked)

    @property
    def is_exact(self) -> bool:
        return len(self._asked) == 1

    def describe(self, traffic: str) -> str:
        asked, counted = self._medians()
        factor = f", factor {counted / asked:.2f}"
        return (
            f"{traffic}: {asked:,} tokens asked (p50), {counted:,} counted{factor}, in {self._asked.total():,} answers"
        )

    def _medians(self) -> tuple[int, int]:
        return median_low(self._asked.elements()), median_low(self._counted.elements())


class ExactLengths(RowFold):
    """Folds end rows of ok answers with usage; `mismatches` counts by figure. Usage that leaves out exactly the image
    tokens, in every answer of a traffic, is a finding of its own: the request had the planned length.
    """

    def __init__(self) -> None:
        self._mismatches: Counter[str] = Counter()
        self._with_images: Counter[str] = Counter()
        self._left_out: Counter[tuple[str, int]] = Counter()  # by traffic and difference
        self._shorter = 0  # outputs of a server that cannot be asked for an exact length
        self._compared: Counter[str] = Counter()
        self._uncounted: Counter[str] = Counter()
        self._asked: defaultdict[str, _Asked] = defaultdict(_Asked)
        self._unlike: dict[str, Counter[tuple[str, int]]] = {"length_mismatch": Counter(), "output_mismatch": Counter()}

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") != "ok":
            return
        if (wanted := row.get("asked_tokens")) and (usage := row.get("prompt_tokens")):
            self._asked[str(row.get("traffic"))].add(wanted, usage)
        self._compare("length_mismatch", row, row.get("planned_tokens"), row.get("prompt_tokens"))
        exact, most, counted = row.get("exact_tokens"), row.get("most_tokens"), row.get("completion_tokens")
        if exact is None and most is not None and counted is not None and counted < most:
            self._shorter += 1
            exact = counted
        self._compare("output_mismatch", row, most if exact is None else exact, counted)

    def _compare(self, figure: str, row: EndRow, planned: int | None, counted: int | None) -> None:
        if planned is None:
            return
        if counted is None:
            self._uncounted[figure] += 1
            return
        self._compared[figure] += 1
        images = row.get("image_tokens")
        if planned == counted and not images:
            return
        key, images = (str(row.get("traffic")), counted - planned), int(images or 0)
        if figure == "length_mismatch" and images:
            self._with_images[key[0]] += 1
            if counted == planned - images:
                self._left_out[key] += 1
                return
        if planned != counted:
            self._mismatches[figure] += 1
            unlike = self._unlike[figure]
            if key in unlike or len(unlike) < 1000:
                unlike[key] += 1

    @property
    def mismatches(self) -> Counter[str]:
        left_out = sum(n for (traffic, _), n in self._left_out.items() if not self._never_counted(traffic))
        return self._mismatches + Counter({"length_mismatch": left_out})

    def _never_counted(self, traffic: str) -> bool:
        left_out = sum(n for (of, _), n in self._left_out.items() if of == traffic)
        return 0 < left_out == self._with_images[traffic]

    def checks(self, expect: Sequence[str]) -> list[CheckResult]:
        """One check per compared figure. It fails on any mismatch, unless `expect` has a bound of its own for it. Exact
        outputs without usage prove nothing.
        """
        checks = [
            self._check(figure, name, what, bounded=any(figure in text for text in expect))
            for figure, name, what in (
                ("length_mismatch", "exact_lengths", "prompts"),
                ("output_mismatch", "exact_outputs", "outputs"),
            )
            if self._compared[figure] or (figure == "output_mismatch" and self._uncounted[figure])
        ]
        return [*checks, *self._asked_lengths(), *self._image_usage()]

    def _asked_lengths(self) -> list[CheckResult]:
        """Asked and counted lengths of prompts whose tokens could only be estimated, where they differ."""
        found = {traffic: asked for traffic, asked in sorted(self._asked.items()) if asked.differs()}
        if not found:
            return []
        actual = "; ".join(asked.describe(traffic) for traffic, asked in found.items())
        decision: Decision = "unknown" if any(asked.is_exact for asked in found.values()) else "pass"
        return [CheckResult("asked_lengths", "usage as asked", actual, decision)]

    def _image_usage(self) -> list[CheckResult]:
        found = [(traffic, n) for traffic, n in sorted(self._with_images.items()) if self._never_counted(traffic)]
        texts = [f"left out in all {n:,} answers of {traffic}" for traffic, n in found]
        actual = "; ".join(texts) + ", though usage counted them before the load"
        return [CheckResult("image_usage", "image tokens in usage", actual, "pass")] if found else []

    def _check(self, figure: str, name: str, what: str, *, bounded: bool) -> CheckResult:
        n, wrong, blind = self._compared[figure], self.mismatches[figure], self._uncounted[figure]
        unlike = self._unlike[figure]
        if figure == "length_mismatch":
            unlike = unlike + Counter({k: n for k, n in self._left_out.items() if not self._never_counted(k[0])})
        examples = "; ".join(f"{traffic}: {by:+d} in {k}" for (traffic, by), k in unlike.most_common(_EXAMPLES))
        actual = f"{n - wrong:,} of {n:,} {what}" + (f" ({examples})" if wrong else "")
        if figure == "output_mismatch" and self._shorter:
            actual += f"; {self._shorter:,} shorter: this server has no option for an exact length"
        if wrong and not bounded:
            return CheckResult(name, "usage as planned", actual, "fail")
        if figure == "output_mismatch" and blind > _BLIND_SHARE * (n + blind):
            actual += f"; {blind:,} answers carry no usage"
            return CheckResult("exact_outputs", "usage as planned", actual, "unknown")
        return CheckResult(name, "usage as planned", actual, "pass")
